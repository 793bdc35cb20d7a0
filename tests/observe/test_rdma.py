# SPDX-License-Identifier: Apache-2.0
"""What doctor says about RDMA, for hosts of all kinds."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tensorwire.cli import app
from tensorwire.observe import loopback, rdma
from tensorwire.observe.rdma import Gid, Port, Rdma
from tensorwire.transports import why_not

PORT = Port(
    name="mlx5_0:1",
    state="PORT_ACTIVE",
    layer="Ethernet",
    lid=0,
    mtu=4096,
    megabits=100_000,
    numa_node=1,
    chosen_gid=3,
    unusable="",
    used=True,
    gids=(
        Gid(0, "RoCE v1", "fe80::1"),
        Gid(1, "RoCE v2", "fe80::1"),
        Gid(3, "RoCE v2", "::ffff:10.0.0.1"),
    ),
)
GOOD = Rdma(ports=(PORT,), devices=("mlx5_0",))
RECORD: dict[str, Any] = {
    "name": "mlx5_0:1",
    "state": "PORT_ACTIVE",
    "layer": "Ethernet",
    "lid": 0,
    "mtu": 4096,
    "megabits": 100_000,
    "numa_node": 1,
    "chosen_gid": 3,
    "unusable": "",
    "used": 1,
    "gids": [
        {"index": 3, "address": "::ffff:10.0.0.1", "kind": "RoCE v2"},
        {"index": 0, "address": "fe80::1", "kind": "RoCE v1"},
        {"index": 1, "address": "fe80::1", "kind": "RoCE v2"},
    ],
}


def test_records_of_the_runtime() -> None:
    assert rdma.ports([RECORD]) == (PORT,)


def test_this_host() -> None:
    found = rdma.look()
    assert (found.why_not or None) == why_not("verbs")
    assert bool(found.why_not) or any(port.used for port in found.ports)


def test_a_host_without_devices_has_nothing_to_mend() -> None:
    (finding,) = rdma.examine(Rdma(why_not="this kernel has no RDMA devices"))
    assert (finding.verdict, finding.mend) == ("ok", "")
    assert finding.meaning == "this kernel has no RDMA devices"


def test_a_port_that_links_use() -> None:
    way, port = rdma.examine(GOOD)
    assert way.verdict == "ok"
    assert port.subject == "RDMA mlx5_0:1"
    assert port.value == (
        "active, Ethernet, 100 Gbit/s, MTU 4096, GID 3: ::ffff:10.0.0.1 (RoCE v2), NUMA node 1"
    )
    assert "links use it; other GIDs: 0, 1 (chosen: RoCE v2 before v1" in port.meaning


def test_an_index_that_the_user_has_set() -> None:
    port = rdma.examine(dataclasses.replace(GOOD, gid_by_setting=True))[1]
    assert port.meaning.endswith("(by TENSORWIRE_VERBS_GID_INDEX)")


def test_infiniband_has_lids() -> None:
    gids = (Gid(0, "InfiniBand", "fe80::2"),)
    changed = dataclasses.replace(PORT, layer="InfiniBand", lid=7, chosen_gid=0, gids=gids)
    port = rdma.examine(dataclasses.replace(GOOD, ports=(changed,)))[1]
    assert "LID 7, GID 0: fe80::2 (InfiniBand)" in port.value
    assert port.meaning == "links use it"


def test_emulated_devices_are_called_so() -> None:
    port = rdma.examine(dataclasses.replace(GOOD, emulated=("mlx5_0",)))[1]
    assert "emulated by the kernel" in port.meaning


def test_iwarp_is_refused() -> None:
    changed = dataclasses.replace(PORT, unusable="iWARP is not supported", used=False)
    port = rdma.examine(dataclasses.replace(GOOD, ports=(changed,)))[1]
    assert port.meaning.startswith("iWARP is not supported")


@pytest.mark.parametrize(
    ("changes", "mend"),
    [
        ({"kernel": False, "ports": ()}, "modprobe ib_uverbs"),
        ({"readable": False, "ports": ()}, "--device=/dev/infiniband"),
        ({"why_not": "libibverbs.so.1 is not there", "ports": ()}, "libibverbs1"),
        ({"ports": (dataclasses.replace(PORT, state="PORT_INIT"),)}, "opensm"),
        ({"ports": (dataclasses.replace(PORT, state="PORT_DOWN"),)}, "ibv_devinfo"),
    ],
)
def test_a_device_that_cannot_be_used_comes_with_a_command(
    changes: dict[str, Any], mend: str
) -> None:
    why = {"why_not": "no port is active"}
    finding = rdma.examine(dataclasses.replace(GOOD, **{**why, **changes}))[0]
    assert finding.verdict == "warn"
    assert finding.value == "not by mlx5_0"
    assert finding.meaning == {**why, **changes}["why_not"]
    assert mend in finding.mend


def ten_megabytes(transport: str, timeout: float) -> int:
    return 10 << 20


def never(transport: str, timeout: float) -> int:
    raise AssertionError("nothing is to be transferred")


def test_a_transfer_through_the_adapter() -> None:
    finding = rdma.examine_host(lambda: GOOD, ten_megabytes)[0][-1]
    assert (finding.subject, finding.verdict) == ("RDMA loopback", "ok")
    assert finding.value == "10M there and back"


def test_a_transfer_that_fails_breaks_the_host() -> None:
    def fail(transport: str, timeout: float) -> int:
        raise loopback.LoopbackError(f"{transport}: 1000 bytes came back changed")

    finding = rdma.examine_loopback(transfer=fail)
    assert finding.verdict == "fail"
    assert finding.meaning == "verbs: 1000 bytes came back changed"
    assert "TENSORWIRE_FORBID=verbs" in finding.mend


def test_what_is_forbidden_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_FORBID", "verbs")
    finding = rdma.examine_loopback(transfer=never)
    assert (finding.value, finding.verdict) == ("not tried", "ok")
    assert "TENSORWIRE_FORBID=verbs" in finding.meaning


def test_without_a_device_nothing_is_transferred() -> None:
    assert len(rdma.examine_host(lambda: Rdma(why_not="none"), never)[0]) == 1


def test_the_command_prints_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rdma.examine_host(lambda: GOOD, ten_megabytes)
    monkeypatch.setattr(rdma, "examine_host", lambda: found)
    report = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    (port,) = report["rdma"]["ports"]
    assert port["gids"][2] == {"index": 3, "kind": "RoCE v2", "address": "::ffff:10.0.0.1"}
    subjects = [finding["subject"] for finding in report["host"]]
    assert {"RDMA", "RDMA mlx5_0:1", "RDMA loopback"} <= set(subjects)
    shown = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "250"}).stdout
    assert "GID 3: ::ffff:10.0.0.1 (RoCE v2)" in shown
