# SPDX-License-Identifier: Apache-2.0
"""A bad wire, a wire that is cut, and peers that die, between two devices."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from tests.verbs import kernel
from tests.verbs.processes import Linked, agents, connect, linked

pytestmark = pytest.mark.skipif(
    not (kernel.DEVICES / "rxe1").exists(), reason="needs two devices (--net veth)"
)

MB = 1 << 20
NEAR, FAR = {"TENSORWIRE_VERBS_DEVICE": "rxe0"}, {"TENSORWIRE_VERBS_DEVICE": "rxe1"}
SIZES = [1, 1000, 8192, 8193, 16_384, 16_385, 65_536, 100_000]
UNAVAILABLE = 14
DEVICES = ("rxe0", "rxe1")
SILENT_SECONDS = 5.0  # for a device that gives up repeating, if it ever does


@pytest.fixture
def wired() -> Iterator[Linked]:
    with linked(NEAR, FAR) as link:
        yield link


def test_the_devices_talk_over_the_wire(wired: Linked) -> None:
    """Otherwise nothing here would test anything."""
    before = packets()
    assert wired.client.do("check", link=wired.link, sizes=[1 * MB])["bad"] == []
    assert packets() >= before + MB // 4096


def packets() -> int:
    statistics = "/sys/class/net/veth0/statistics/"
    return sum(int(kernel.command(f"cat {statistics}{way}_packets")) for way in ("tx", "rx"))


def test_a_thousand_transfers(wired: Linked) -> None:
    said = wired.client.do("transfers", link=wired.link, count=1000, sizes=SIZES)
    assert said == {"done": 1000, "wrong": 0, "code": 0, "details": ""}
    assert wired.server.do("count") == {"received": 1000, "wrong": 0}


def test_loss_and_delay_cost_time_only(wired: Linked) -> None:
    with kernel.disturbed("loss 5%", "delay 20ms"):
        said = wired.client.do("transfers", link=wired.link, count=16, sizes=SIZES)
        assert said == {"done": 16, "wrong": 0, "code": 0, "details": ""}
        said = wired.client.do("check", link=wired.link, sizes=[10, 1 * MB, 10])
        assert said == {"code": 0, "details": "", "bad": []}


def test_packets_that_come_twice_or_in_another_order(wired: Linked) -> None:
    with kernel.disturbed("delay 2ms", "reorder 20%", "duplicate 5%"):
        said = wired.client.do("transfers", link=wired.link, count=16, sizes=SIZES)
        assert said == {"done": 16, "wrong": 0, "code": 0, "details": ""}


def test_a_cut_longer_than_all_repeats_loses_the_link_at_most_and_no_data() -> None:
    """What was under way ends UNAVAILABLE. Soft-RoCE now and then never counts its repeats; then
    calls go on once the port is up, or the link is given up because its device is silent. A new
    link works in any case."""
    short = {"TENSORWIRE_VERBS_TIMEOUT": "16", "TENSORWIRE_VERBS_RETRY_COUNT": "2"}
    with linked({**NEAR, **short}, {**FAR, **short}) as wired:
        client, server = wired.client, wired.server
        order = client.begin("transfers", link=wired.link, count=1000, sizes=SIZES)
        assert kernel.eventually(lambda: server.do("count")["received"] > 50)
        before = kernel.counted("retry_exceeded_err", *DEVICES)
        with kernel.cut():
            kernel.eventually(
                lambda: kernel.counted("retry_exceeded_err", *DEVICES) > before, SILENT_SECONDS
            )
        said = client.finish(order)
        assert said["wrong"] == 0
        if said["done"] < 1000:
            assert said["code"] == UNAVAILABLE, said
            assert said["details"]
        link = connect(client, server, wired.address)
        said = client.do("transfers", link=link, count=1000, sizes=SIZES)
        assert said == {"done": 1000, "wrong": 0, "code": 0, "details": ""}
        assert server.do("count")["wrong"] == 0


def test_a_port_that_is_up_again_is_probed_on_idle_links(wired: Linked) -> None:
    """So that what was lost meanwhile is repeated or fails without anybody sending."""
    assert wired.client.do("check", link=wired.link, sizes=[10])["bad"] == []
    with kernel.cut():
        before = kernel.counted("rcvd_pkts", "rxe1")
    assert kernel.eventually(lambda: kernel.counted("rcvd_pkts", "rxe1") > before)
    assert wired.client.do("check", link=wired.link, sizes=[10])["bad"] == []


def test_a_cut_shorter_than_all_repeats_is_only_a_delay() -> None:
    patient = {"TENSORWIRE_VERBS_TIMEOUT": "19", "TENSORWIRE_VERBS_RETRY_COUNT": "6"}
    with linked({**NEAR, **patient}, {**FAR, **patient}) as wired:
        order = wired.client.begin("transfers", link=wired.link, count=1000, sizes=SIZES)
        assert kernel.eventually(lambda: wired.server.do("count")["received"] > 50)
        before = kernel.counted("completer_retry_err", *DEVICES)
        with kernel.disturbed("loss 100%"):
            assert kernel.eventually(
                lambda: kernel.counted("completer_retry_err", *DEVICES) > before
            )
        said = wired.client.finish(order)
        assert said == {"done": 1000, "wrong": 0, "code": 0, "details": ""}
        assert wired.server.do("count")["wrong"] == 0


SLOW = "rate 100mbit"  # so that a large read is under way for a while


@pytest.mark.parametrize("victim", ["reader", "owner"])
def test_a_peer_that_is_killed_in_the_middle_of_a_read(victim: str) -> None:
    """The client owns what the server reads. Whoever survives hears of it, long before a call's
    deadline, and has its memory back; to that of a reader nothing is written any more."""
    with agents(NEAR, FAR) as (owner, reader):
        link = connect(owner, reader, reader.do("listen")["address"])
        assert owner.do("check", link=link, sizes=[100_000])["bad"] == []
        reader.do("keep_trace")
        with kernel.disturbed(SLOW):
            order = owner.begin("check", link=link, sizes=[64 * MB])
            assert kernel.eventually(lambda: reads_under_way(reader.do("server_traces")))
            if victim == "reader":
                reader.kill()
                said = owner.finish(order)
                assert said["code"] == UNAVAILABLE, said
                assert kernel.eventually(lambda: owner.do("arena")["used"] == 0)
            else:
                owner.kill()
                assert kernel.eventually(lambda: not reader.do("server_stats"))
                reader.do("set_canaries", size=4 * MB, count=32)
                assert kernel.eventually(kernel.wire_is_empty)
                assert reader.do("dead_canaries") == 0


def reads_under_way(traces: list[list[list[object]]]) -> bool:
    return any(step[2] == "READ" for steps in traces for step in steps)


def test_a_link_outlives_the_silence_of_its_peer(wired: Linked) -> None:
    """SIGSTOP: its device goes on answering, its processor does not."""
    wired.server.process.send_signal(signal.SIGSTOP)
    try:
        before = {device: kernel.counted("rcvd_pkts", device) for device in DEVICES}
        order = wired.client.begin("check", link=wired.link, sizes=[10])
        # The request has come, and what acknowledges it.
        assert kernel.eventually(
            lambda: all(kernel.counted("rcvd_pkts", at) > count for at, count in before.items())
        )
        assert wired.client.do("alive", link=wired.link)["alive"]
    finally:
        wired.server.process.send_signal(signal.SIGCONT)
    assert wired.client.finish(order)["bad"] == []
