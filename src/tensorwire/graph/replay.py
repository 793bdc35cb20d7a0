# SPDX-License-Identifier: Apache-2.0
"""A program in stages, each machine's in a process of its own, with its tensors as planned."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from tensorwire.collective import Store
from tensorwire.collective.stores import store_of
from tensorwire.graph.links import Links, ReplayError, StageLostError, StageTimeoutError
from tensorwire.graph.messages import Inbox, Outbox
from tensorwire.graph.plan import Plan, PlanError
from tensorwire.graph.program import Program
from tensorwire.rpc import lifetime

if TYPE_CHECKING:
    from tensorwire.rpc.choice import Transport

_LOOK: Final = 0.05
"""Seconds between looks at whether another machine than the one that is waited for is lost."""

__all__ = ["Replay", "ReplayError", "StageLostError", "StageTimeoutError"]


class Replay:
    """One machine of a program: runs the stages that are its own, step by step.

    Each machine is a process that makes the same program and the same plan. They are joined by
    links, each with each, and compare the digests of their plans before anything else is sent. From
    then on a step has no question and no answer: memory for what comes is there ``depth`` steps
    ahead, and whoever has a value sends it. What is sent further ahead waits within the credit of
    the link (TENSORWIRE_STREAM_WINDOW_BYTES), and then its sender does.

    What a machine sends is what ``Program`` would hand from stage to stage: results have the same
    bits as in one process. Not thread-safe.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        machine: str,
        store: Store | str | os.PathLike[str],
        *,
        host: str = "127.0.0.1",
        transport: Transport | None = None,
        timeout: float = 60.0,
    ) -> None:
        """Returns once all machines have come.

        machine: which one this process is. store: where they find each other, fresh for each
        replay: a folder, ``host:port``, or a store, as of ``tensorwire.collective.join``. host: the
        address of this host at which the others reach it. transport: as of
        ``tensorwire.insecure_channel``. timeout: seconds, of meeting and of each wait for another
        machine.

        Raises PlanError when the plan is none of the program, or another machine has another one:
        no tensor has been sent then; StageTimeoutError when a machine does not come; StageLostError
        when one is lost.
        """
        if machine not in program.machines:
            raise PlanError(
                f"the program has no machine {machine!r}; there are {', '.join(program.machines)}"
            )
        if list(plan.edges) != program.edges():
            raise PlanError(
                "the plan has other edges than the program: make it of program.edges(), without "
                "leaving any out"
            )
        stock = [edge for edge in plan.edges if edge.way == "stock"]
        if stock:
            raise PlanError(f"{stock[0].name} cannot travel: it is of type {stock[0].dtype}")
        self.machine: Final = machine
        self.plan: Final = plan
        self.program: Final = program
        self._timeout = timeout
        self._generation = lifetime.generation()
        self._steps = 0
        self._over: BaseException | None = None
        self._stages = [stage for stage in program.stages if stage.machine == machine]
        self._links = Links(
            store_of(store),
            machine,
            program.machines,
            plan.digest,
            host=host,
            transport=transport,
            timeout=timeout,
        )
        try:
            self._open()
        except BaseException as error:
            self._fail(error)
            raise

    def _open(self) -> None:
        peers = self._links.peers
        self._inboxes: dict[str, tuple[str, Inbox]] = {}
        self._outboxes: dict[int, list[tuple[str, Outbox]]] = {}
        for each in self.plan.transfers():
            if each.target == self.machine:
                peer = peers[each.source]
                with self._links.talking_to(each.source):
                    inbox = Inbox(peer, each, self.plan.depth, self.program)
                self._inboxes.update({edge.name: (each.source, inbox) for edge in each.edges})
            elif each.source == self.machine:
                outbox = Outbox(peers[each.target], each)
                self._outboxes.setdefault(each.round, []).append((each.target, outbox))

    @property
    def inputs(self) -> tuple[str, ...]:
        """What ``step`` is given on this machine."""
        return self.program.inputs_of(self.machine)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What ``step`` returns on this machine."""
        return self.program.outputs_of(self.machine)

    @property
    def steps(self) -> int:
        """That this machine has done."""
        return self._steps

    def step(self, **inputs: Any) -> dict[str, Any]:
        """Runs this machine's stages once: the results of the program that it makes, by their
        names. inputs: those of the program that it needs, by theirs.

        Raises TypeError for inputs that are missing or unknown: nothing has been done. Whatever
        else it raises ends the replay for all machines: StageLostError when one is gone,
        StageTimeoutError when nothing has come within the timeout, ReplayError when one that this
        machine takes from, or gives to, has ended after fewer steps, PlanError when a value has
        another shape or dtype than planned, or what a stage raises. In a forked child it raises
        ReplayError and does nothing: the parent's replay goes on.
        """
        if why := lifetime.inherited(self._generation):
            raise ReplayError(f"the replay cannot go on here: {why}")
        if self._over is not None:
            raise ReplayError(f"the replay has ended: {self._over}") from self._over
        self.program.check_inputs(self.inputs, inputs)
        try:
            return self._step(inputs)
        except BaseException as error:
            self._fail(error)
            raise

    def _step(self, values: dict[str, Any]) -> dict[str, Any]:
        taken: dict[int, tuple[str, Inbox]] = {}
        for stage in self._stages:
            for name in stage.inputs:
                if name not in values:
                    source, inbox = self._inboxes[name]
                    values.update(self._take(source, inbox))
                    taken[id(inbox)] = source, inbox
            found = stage.run(*(values[name] for name in stage.inputs))
            values.update(zip(stage.outputs, found, strict=True))
            for target, outbox in self._outboxes.get(stage.round, ()):
                self._links.check(target, self._steps)
                with self._links.talking_to(target):
                    outbox.send(values, self._timeout)
        results = {name: values[name] for name in self.outputs}
        values.clear()  # what nobody else keeps can be received into again
        for source, inbox in taken.values():
            with self._links.talking_to(source):
                inbox.post()
        self._steps += 1
        return results

    def _take(self, source: str, inbox: Inbox) -> dict[str, Any]:
        until = time.monotonic() + self._timeout
        with self._links.talking_to(source):
            while True:
                self._links.check(source, self._steps)
                left = until - time.monotonic()
                found = inbox.take(max(0.0, min(left, _LOOK)))
                if found is not None:
                    return found
                if left <= 0:
                    raise StageTimeoutError(
                        f"nothing came from machine {source} for {self._timeout:g} s, in step "
                        f"{self._steps}"
                    )

    def _fail(self, error: BaseException) -> None:
        self._over = error
        self._links.abort(error)

    def close(self) -> None:
        """Ends this machine's part, once all machines want to. Raises StageLostError,
        StageTimeoutError, and ReplayError when another machine has done more steps, or fewer;
        StageLostError where that one has found it out first. May be called again; in a forked child
        it does nothing."""
        if self._over is None and not lifetime.inherited(self._generation):
            self._over = ReplayError("it was closed")
            self._links.close(self._steps, self._timeout)

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self.close()
        elif self._over is None and not lifetime.inherited(self._generation):
            self._fail(error)
