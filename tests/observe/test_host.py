# SPDX-License-Identifier: Apache-2.0
"""Looking at the host."""

from __future__ import annotations

import socket
from pathlib import Path

from tensorwire.observe import host


def test_facts_are_plausible() -> None:
    facts = host.facts()
    assert facts.cpus >= 1
    assert facts.memory_free > 1 << 20
    assert facts.memory_limit == host.UNLIMITED or facts.memory_limit > 1 << 20
    assert facts.tcp_receive > 1 << 12
    assert (
        facts.congestion
        in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    )


def test_when_the_kernel_gives_huge_pages_to_shared_memory(tmp_path: Path) -> None:
    file = tmp_path / "shmem_enabled"
    assert host.shared_huge_pages(file) == ""
    file.write_text("always within_size advise [never] deny force\n")
    assert host.shared_huge_pages(file) == "never"


def test_rdma_devices(tmp_path: Path) -> None:
    for name in ("mlx5_1", "mlx5_0"):
        (tmp_path / name).mkdir()
    assert host.rdma_devices(tmp_path) == ("mlx5_0", "mlx5_1")
    assert host.rdma_devices(tmp_path / "none") == ()


def test_software_that_plays_a_device(tmp_path: Path) -> None:
    for name in ("mlx5_0", "rxe0", "rxe1", "siw0"):
        (tmp_path / name).mkdir()
    for name in ("mlx5_0", "rxe1", "siw0"):  # those over a real card have its device
        (tmp_path / name / "device").mkdir()
    (tmp_path / "rxe1" / "parent").write_text("eth0\n")
    (tmp_path / "siw0" / "node_desc").write_text("Software iWARP stack\n")
    (tmp_path / "mlx5_0" / "node_desc").write_text("host0 mlx5_0\n")
    assert host.emulated_rdma(tmp_path) == ("rxe0", "rxe1", "siw0")


def test_file_systems() -> None:
    assert host.file_system_size("/") > 0
    assert host.file_system_size("/no/such/place") == 0


def test_congestion_controls_by_setting() -> None:
    default = host.congestion_control()
    assert host.same_host_congestion_control("system") == default
    assert host.same_host_congestion_control("reno") == "reno"
    assert host.same_host_congestion_control("no-such") == "reno"
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        except OSError:
            assert host.same_host_congestion_control() == "reno"
        else:
            assert host.same_host_congestion_control() == "cubic"


def test_what_sets_the_clocks_of_processors(tmp_path: Path) -> None:
    assert host.governors(tmp_path) == ()
    for number, name in enumerate(("powersave", "performance", "powersave")):
        folder = tmp_path / f"cpu{number}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{name}\n")
    assert host.governors(tmp_path) == ("performance", "powersave")


def test_nodes_and_their_processors(tmp_path: Path) -> None:
    assert host.numa_nodes(tmp_path / "none") == {}
    for name, processors in (("node0", "0-1"), ("node1", "2-3")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(f"{processors}\n")
    assert host.numa_nodes(tmp_path) == {"node0": "0-1", "node1": "2-3"}
