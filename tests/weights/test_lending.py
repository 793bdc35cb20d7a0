# SPDX-License-Identifier: Apache-2.0
"""Readers on the publisher's host, which are lent its memory."""

from __future__ import annotations

import numpy as np
import pytest
from tests.weights.other import channel, eventually, other, publisher

from tensorwire import weights
from tensorwire.weights.versions import Stored


def test_a_quota_that_is_used_up_means_copies(caplog: pytest.LogCaptureFixture) -> None:
    """And says what mends it; a larger one, or none given, means none."""

    def told() -> bool:
        return any("quota" in record.getMessage() for record in caplog.records)

    for quota, leased in ((1 << 16, 0), (None, 1 << 17)):
        made, server, port = publisher({"a": np.zeros(1 << 17, np.uint8)}, quota=quota)
        made.publish()
        with other() as reader:
            reader.do(
                f"sub = weights.Subscriber(channel({port}, 'shm'), {{'a': np.ones(1 << 17, 'u1')}})"
            )
            reader.do("held = sub.view(timeout=10)")
            assert reader.do("int(held.__enter__()['a'].sum())") == 0
            assert made.stats().leased == leased
            assert (made.stats().copied == 0) == (leased != 0)
        if leased == 0:
            eventually(told)  # by a thread of its own
        else:
            assert not told()
        caplog.clear()
        server.stop(None)


def test_a_reader_may_hold_more_than_its_share_of_the_arena() -> None:
    """Three quarters of it, while other traffic has a lease, too."""
    with other(TENSORWIRE_BUFFER_BYTES="32M") as trainer:
        trainer.do("params = {'a': np.ones(8 << 20, np.uint8)}")
        trainer.do("made = publisher(params)")
        params = {"a": np.zeros(8 << 20, np.uint8)}
        with weights.Subscriber(channel(trainer.do("made[2]"), "shm"), params) as reader:
            views = []
            for number in range(1, 4):
                trainer.do("params['a'] += 1; made[0].publish()")
                views.append(reader.view(at_least=number, timeout=10))
                view = views[-1].__enter__()
                assert int(view["a"][0]) == number + 1
            assert trainer.do("made[0]._store.quota.leased") == 3 << 23
            assert trainer.do("tensorwire.arena_stats()['wanted']") == 0
            for each in views:
                each.__exit__(None, None, None)


def test_a_version_that_finds_no_room_is_copied() -> None:
    with other(TENSORWIRE_BUFFER_BYTES="1M") as trainer:
        trainer.do("made = publisher({'a': np.ones(3 << 20, np.uint8)})")
        trainer.do("import logging, io; log = io.StringIO()")
        trainer.do("logging.getLogger('tensorwire').addHandler(logging.StreamHandler(log))")
        trainer.do("made[0].publish()")
        trainer.do("made[0].publish()")
        told = trainer.do("log.getvalue()")
        assert told.count("copied for each reader") == 1
        assert "raise TENSORWIRE_BUFFER_BYTES" in told
        # The other version has no byte of its own.
        assert trainer.do("made[0].stats().outside") == 1
        params = {"a": np.zeros(3 << 20, np.uint8)}
        with weights.Subscriber(channel(trainer.do("made[2]"), "shm"), params) as reader:
            reader.pull(timeout=10)
        assert (params["a"] == 1).all()


def test_the_reply_to_who_viewed_the_version_before_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = {"a": np.zeros(1 << 17, np.uint8)}
    made, server, port = publisher(params)
    made.publish()
    with other() as reader:
        reader.do(
            f"sub = weights.Subscriber(channel({port}, 'shm'), {{'a': np.ones(1 << 17, 'u1')}})"
        )
        reader.do("first = sub.view(timeout=10)")
        assert reader.do("int(first.__enter__()['a'][0])") == 0
        params["a"][...] = 2
        made.publish()

        def late(*_: object) -> None:
            raise AssertionError("the reply is made while its reader waits")

        monkeypatch.setattr(Stored, "_lent", late)
        reader.do("second = sub.view(at_least=2, timeout=10)")
        assert reader.do("int(second.__enter__()['a'][0])") == 2
    server.stop(None)
