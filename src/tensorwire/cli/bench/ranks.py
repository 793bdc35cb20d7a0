# SPDX-License-Identifier: Apache-2.0
"""A benchmark of TF-gRPC-Bench that torchrun, mpirun or srun has started on several ranks."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

import typer

from tensorwire.cli.group import Command
from tensorwire.cli.options import usage

if TYPE_CHECKING:
    from tensorwire.bench.harness.meeting import Meeting
    from tensorwire.bench.harness.tokens import Token
    from tensorwire.launch.place import Place

_FOR_ONE: Final = ("serve", "connect", "network")
_OF_A_RANK: Final = ("token_file", "output", "csv", "plot")
"""Paths, which differ from host to host."""


class RankCommand(Command):
    """On rank 0, what it is without a launcher, with ``Ranks`` as the context's object. Any other
    rank serves it, and ends with its code."""

    def invoke(self, ctx: Any) -> Any:
        from tensorwire.launch.place import launched

        place = usage("the launcher's variables", launched, os.environ)
        if place is None or place.size == 1:
            return super().invoke(ctx)
        for name in _FOR_ONE:
            if ctx.params[name]:
                option = f"--{name}"
                raise typer.BadParameter("a launcher starts the other processes", param_hint=option)
        return self._as_rank(ctx, place)

    def _as_rank(self, ctx: Any, place: Place) -> Any:
        from tensorwire.bench.harness.control import LostError
        from tensorwire.bench.harness.following import following
        from tensorwire.bench.harness.meeting import RanksError
        from tensorwire.bench.harness.ranks import leading
        from tensorwire.bench.harness.tokens import Token
        from tensorwire.bench.suites.tf_grpc.cluster import ordered

        token = None if place.folder else usage("--token-file", Token.of, ctx.params["token_file"])
        meeting = _meeting(ctx, place, token)
        command = ordered(str(token.file) if token else "")
        asked = ctx.get_parameter_source("port").name != "DEFAULT"
        try:
            if place.rank:
                raise typer.Exit(following(meeting, command))
            with leading(meeting, command, ctx.params["port"] if asked else 0) as ranks:
                ctx.obj = ranks
                code = 1
                try:
                    found = super().invoke(ctx)
                    code = 0
                except (KeyboardInterrupt, SystemExit, Exception) as error:
                    code = _code(error)
                    raise
                finally:
                    ranks.end(code)
                return found
        except (RanksError, LostError) as error:
            print(f"tensorwire bench {ctx.info_name}: {error}", file=sys.stderr, flush=True)
            raise typer.Exit(getattr(error, "code", 1)) from None


def _code(error: BaseException) -> int:
    """That with which the command ends."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    code = getattr(error, "exit_code", getattr(error, "code", 1))
    return code if isinstance(code, int) else 1


def _meeting(ctx: Any, place: Place, token: Token | None) -> Meeting:
    from tensorwire.bench.harness.meeting import Meeting

    given = {
        each.opts[0]: str(ctx.params[each.name])
        for each in ctx.command.params
        if each.name in ctx.params and each.name not in _OF_A_RANK
    }
    return Meeting(place, token.text.encode() if token else None, given)
