# SPDX-License-Identifier: Apache-2.0
"""Many links at once, and what is left of them: counted by the kernel's resource tracker."""

from __future__ import annotations

from functools import partial

import pytest
from tests.verbs import kernel
from tests.verbs.processes import agents, connect, linked

LINKS = 200
AT_ONCE = 16  # of one invitation, which lasts a minute: a link may take a second or two
MB = 1 << 20


@pytest.mark.timeout(900)
def test_200_links_and_nothing_is_left() -> None:
    with agents({}, {}) as (client, server):
        address = server.do("listen")["address"]
        first = connect(client, server, address)
        assert client.do("check", link=first, sizes=[10, 100_000])["bad"] == []
        registrations = [kernel.resources(agent.pid)["mr"] for agent in (client, server)]
        links = [first]
        while len(links) < LINKS:
            count = min(LINKS - len(links), AT_ONCE)
            invitation = server.do("admit", hello=client.do("hello"), connections=count)
            links.extend(
                client.do("connect", address=address, **invitation)["link"] for _ in range(count)
            )
        for link in links:
            said = client.do("check", link=link, sizes=[10, 20_000], number=link)
            assert said == {"code": 0, "details": "", "bad": []}
        for agent, before in zip((client, server), registrations, strict=True):
            used = kernel.resources(agent.pid)
            assert used["qp"] == LINKS
            assert used["cq"] <= LINKS // 50  # shared
            assert used["mr"] <= before + LINKS  # buffers of each link; the arena is there once
        client.do("close_all")
        # The arena stays registered, in processes that go on.
        for agent, before in zip((client, server), registrations, strict=True):
            assert kernel.eventually(partial(only_arena, agent.pid))
            assert kernel.resources(agent.pid)["mr"] < before
        server.do("close_all")
    assert kernel.resources().total() == 0


def only_arena(pid: int) -> bool:
    used = kernel.resources(pid)
    return used["qp"] == used["cq"] == 0 and used["mr"] <= 2


def test_registrations_do_not_grow_with_tensors() -> None:
    with linked() as one:
        counts = []
        for round_ in range(3):
            sizes = [20_000 + 4096 * n for n in range(1, 30)]
            said = one.client.do("check", link=one.link, sizes=sizes, number=round_)
            assert said["bad"] == []
            counts.append([kernel.resources(a.pid)["mr"] for a in (one.client, one.server)])
        assert counts[0] == counts[1] == counts[2]


def test_a_killed_process_leaves_nothing() -> None:
    with linked() as one:
        assert one.client.do("check", link=one.link, sizes=[10, 100_000])["bad"] == []
        assert kernel.resources(one.client.pid)["qp"] == 1
        assert kernel.resources()["qp"] == 2
        one.client.kill()
        assert kernel.eventually(lambda: kernel.resources()["qp"] == 0)
        # The server gives back more than its queue pair meanwhile.
        assert kernel.eventually(lambda: kernel.resources() == kernel.resources(one.server.pid))


@pytest.mark.skipif(not (kernel.DEVICES / "rxe1").exists(), reason="needs two devices")
def test_two_devices_share_the_chunks_of_one_link() -> None:
    """Each device of the one end is joined with the other one of the other end, over the wire."""
    devices = ["rxe0", "rxe1"]
    here, there = (
        {"TENSORWIRE_VERBS_DEVICE": ",".join(order)} for order in (devices, devices[::-1])
    )
    with linked(here, there) as one:
        for agent in (one.client, one.server):
            assert sorted(qp["ifname"] for qp in kernel.objects("qp", agent.pid)) == devices
        before = [kernel.counted("rcvd_pkts", device) for device in devices]
        said = one.client.do("check", link=one.link, sizes=[10, 24 * MB, 10])
        assert said == {"code": 0, "details": "", "bad": []}
        for device, earlier in zip(devices, before, strict=True):
            # Six chunks of 4 MB; the packets of a READ carry 4096 bytes at most.
            assert kernel.counted("rcvd_pkts", device) - earlier > 2 * (4 * MB // 4096)
