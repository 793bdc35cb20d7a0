# SPDX-License-Identifier: Apache-2.0
"""``tensorwire doctor``: what this host has, and what a peer would get."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tensorwire.cli.group import TRANSPORTS, Command, single
from tensorwire.cli.options import DAY, Json, transports

if TYPE_CHECKING:
    from tensorwire.rpc.choice import Transport

app = single()


def _refuse_unclear(target: str) -> None:
    """What gRPC would take for a host at port 443, or for another port than the one meant."""
    host, _, port = target.rpartition(":")
    named = re.match(r"(dns|unix|unix-abstract|vsock|ipv4|ipv6|xds):", target)  # as gRPC names them
    one = ":" not in host or (host.startswith("[") and host.endswith("]"))
    if not named and not (host and one and port.isdecimal() and 1 <= int(port) <= 65535):
        raise typer.BadParameter(
            f"{target!r} is no HOST:PORT, such as localhost:50051; ports are 1 to 65535",
            param_hint="TARGET",
        )


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "[bold]tensorwire doctor[/]\n\n"
    "[bold]tensorwire doctor localhost:50051[/]\n\n"
    "[bold]tensorwire doctor node7:50051 --transport tcp --json[/]\n\n"
    "[bold]tensorwire doctor --report[/]  (for a bug report)\n\n"
    "Exit codes: 0 nothing is broken (there may be warnings), 1 a transport cannot work here, a "
    "setting is wrong or the peer did not answer, 2 wrong usage.",
)
def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="A gRPC service (host:port); not a TensorFlow server."
        ),
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(help=f"For calls to TARGET, require one of auto, {TRANSPORTS}, grpc."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, max=DAY, help="Seconds for one call.")] = 5.0,
    report: Annotated[
        bool, typer.Option("--report", help="Print all of it as Markdown, for a bug report.")
    ] = False,
    json_: Json = False,
) -> None:
    """Show what this host has, what calls to TARGET would get, and what mends the rest.

    Of TensorFlow it tells whether it can be accelerated here; tensorwire run --stats tells what
    went which way. Where the host has an RDMA device, some megabytes are sent through it and back,
    and compared.
    """
    import json
    from dataclasses import asdict

    from tensorwire.environment import given
    from tensorwire.observe import doctor as command
    from tensorwire.observe import rdma
    from tensorwire.tensorflow import checkup
    from tensorwire.terminal import console

    if transport is not None:
        transport, *more = transports([transport], "auto", "grpc")
        if more:
            raise typer.BadParameter("one transport at a time", param_hint="--transport")
    if target is not None:
        _refuse_unclear(target)
    required = cast("Transport | None", transport)
    findings, settings = command.examine_host()
    by_rdma, adapters = rdma.examine_host()
    findings += [*by_rdma, *checkup.examine()]
    peer = None if target is None else command.examine_peer(target, required, timeout)
    if json_:
        found = {
            "versions": command.versions(),
            "host": [asdict(finding) for finding in findings],
            "settings": settings,
            "rdma": asdict(adapters),
            "peer": None if peer is None else asdict(peer),
        }
        print(json.dumps(found, indent=2))
    elif report:
        command.print_report(findings, peer, given())
    else:
        command.print_findings(findings, console())
        if peer is not None:
            command.print_peer(peer, console())
    broken = any(finding.verdict == "fail" for finding in findings)
    raise typer.Exit(1 if broken or (peer is not None and peer.error) else 0)
