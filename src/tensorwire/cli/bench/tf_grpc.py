# SPDX-License-Identifier: Apache-2.0
"""The options that the benchmarks of TF-gRPC-Bench share, and what they hand over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensorwire.cli.bench.figures import Peers, epilog, measure
from tensorwire.cli.bench.ranks import RankCommand
from tensorwire.cli.group import single
from tensorwire.cli.options import (
    DAY,
    Csv,
    Json,
    Output,
    Rounds,
    Transport,
    choices,
    transports,
    usage,
    words,
)

if TYPE_CHECKING:
    from tensorwire.bench.harness.network import Link
    from tensorwire.bench.harness.ranks import Ranks
    from tensorwire.bench.suites.tf_grpc.payloads import Workload

_RANKS = (
    "All processes are on this host, unless --connect says otherwise. Started by torchrun, mpirun "
    "or srun, each rank has one of them, and rank 0 leads."
)

_OF_SCHEMES = "--scheme, --categories, --bias, --pattern, --buffers"


def benchmark(name: str, summary: str, about: str, *examples: str) -> typer.Typer:
    """The command of one benchmark. examples: arguments."""
    app = single()

    @app.command(
        cls=RankCommand,
        help=f"{summary}\n\n{about}\n\n{_RANKS}",
        epilog=epilog(name, *examples, launcher="mpirun -n 4"),
    )
    def run(
        context: typer.Context,
        scheme: Annotated[
            str, typer.Option(help="Which buffers a payload has: uniform, random, skew, custom.")
        ] = "uniform",
        categories: Annotated[
            str | None,
            typer.Option(
                help="Of buffers, in their order: small, medium, large.",
                show_default="all of them; mimic: large",
            ),
        ] = None,
        bias: Annotated[
            str, typer.Option(help="Of skew, of which category there is most: 60 %.")
        ] = "large",
        pattern: Annotated[
            str,
            typer.Option(help="Of the custom scheme: S, M and L, as SMSSL.", show_default=False),
        ] = "",
        buffers: Annotated[
            str | None,
            typer.Option(
                help="How many buffers (iovecs) a payload has; several by commas.",
                show_default="10; mimic: 2,4,8",
            ),
        ] = None,
        small: Annotated[str, typer.Option(help="Bytes of a small buffer: 1 to 1023.")] = "10",
        medium: Annotated[
            str, typer.Option(help="Of a medium one: 1K and more, less than 1M.")
        ] = "10K",
        large: Annotated[str, typer.Option(help="Of a large one: 1M to 10M.")] = "1M",
        seed: Annotated[int, typer.Option(help="Of the random scheme.")] = 1,
        payload: Annotated[
            str,
            typer.Option(
                help="scheme; model:NAME: all tensors of a model, as resnet50; trace:FILE: the "
                "messages of a program, of tensorwire trace --events --json or profile --json; "
                "several by commas."
            ),
        ] = "scheme",
        mode: Annotated[
            str,
            typer.Option(help="non-serialized (buffers), serialized (protobuf messages)."),
        ] = "non-serialized",
        origin: Annotated[
            str, typer.Option(help="Of buffers: ordinary (any memory), published (in the arena).")
        ] = "ordinary,published",
        reads: Annotated[
            str, typer.Option(help="Whether receivers add up all they received: no, yes.")
        ] = "yes",
        servers: Annotated[
            int | None,
            typer.Option(
                min=1, help="Parameter servers; of mimic nodes.", show_default="1; mimic: 4"
            ),
        ] = None,
        workers: Annotated[
            int | None,
            typer.Option(min=1, help="Processes that call.", show_default="1"),
        ] = None,
        window: Annotated[
            int, typer.Option(min=1, max=1024, help="Calls that each of them has under way.")
        ] = 1,
        both_ways: Annotated[
            bool,
            typer.Option(
                "--both-ways", help="Of p2p benchmarks: each server calls its worker, too."
            ),
        ] = False,
        warm_up: Annotated[
            float, typer.Option(min=0, max=DAY, help="Seconds of calls ahead of each visit.")
        ] = 2.0,
        seconds: Annotated[float, typer.Option(min=0.001, max=DAY, help="Of one visit.")] = 10.0,
        rounds: Rounds = 5,
        rate: Annotated[
            float,
            typer.Option(
                min=0,
                help="Calls that a worker should make in a second, whose times count from when "
                "they should begin; 0: each begins when the one before has ended.",
            ),
        ] = 0.0,
        monitor: Annotated[
            float,
            typer.Option(
                min=0.01, max=DAY, help="Seconds between samples of CPU, memory and network."
            ),
        ] = 0.25,
        network: Annotated[
            str,
            typer.Option(
                help="RATE or RATE,DELAY, as 10gbit or 10gbit,0.1ms: give each process a network "
                "namespace and such a link (needs root); nothing goes by shared memory then.",
                show_default=False,
            ),
        ] = "",
        transport: Transport = [],  # noqa: B006
        without: Annotated[
            str,
            typer.Option(
                help="Measure tensorwire without some of its ideas, too, one at a time: "
                "coalescing, eager, rendezvous, chunking, adaptive, spinning, tuning, pipelining, "
                "zero-copy.",
                show_default=False,
            ),
        ] = "",
        peers: Annotated[
            list[str],
            typer.Option(
                help="Others to measure: zmq, flight, grpc-aio, gloo, mpi, torch-rpc, nixl, "
                "mooncake, ray, ucxx, grpcio-unix, sockets, what else is installed, or all."
            ),
        ] = [],  # noqa: B006
        limits: Annotated[
            bool,
            typer.Option(help="Limit lines: plain sockets, and the receivers' reading alone."),
        ] = True,
        serve: Annotated[
            bool, typer.Option("--serve", help="Only serve, for workers on other hosts.")
        ] = False,
        ip: Annotated[str, typer.Option(help="Where --serve listens.")] = "localhost",
        port: Annotated[
            int,
            typer.Option(
                min=1,
                max=65535,
                help="Of --serve; those behind it are the contenders'. Of --connect, where it "
                "names none. Under a launcher, where it is given, of its ranks' servers.",
            ),
        ] = 50001,
        connect: Annotated[
            str,
            typer.Option(
                help="HOST or HOST:PORT of --serve, several by commas: only work.",
                show_default=False,
            ),
        ] = "",
        token_file: Annotated[
            Path | None,
            typer.Option(
                help="A file with a secret, the same for --serve and --connect, and for all ranks "
                "of a launcher on several hosts."
            ),
        ] = None,
        output: Output = None,
        csv: Csv = None,
        plot: Annotated[
            Path | None, typer.Option(help="Draw bars into this file (needs matplotlib).")
        ] = None,
        json_: Json = False,
    ) -> None:
        from tensorwire.bench.harness.network import REACHING
        from tensorwire.bench.harness.tokens import Token
        from tensorwire.bench.report.tables import ZERO_COPY
        from tensorwire.bench.suites.tf_grpc import remote
        from tensorwire.bench.suites.tf_grpc.cluster import Settings
        from tensorwire.bench.suites.tf_grpc.contender import MODES, ORIGINS, find, names
        from tensorwire.bench.suites.tf_grpc.ideas import IDEAS, PIPELINING, why_same
        from tensorwire.bench.suites.tf_grpc.payloads import CATEGORIES, SCHEMES, Mix, Sizes
        from tensorwire.bench.suites.tf_grpc.suite import (
            LIMITS,
            OWN,
            Options,
            Payloads,
            entries,
            topology,
            topology_of_ranks,
        )
        from tensorwire.bench.suites.tf_grpc.suite import plot as draw
        from tensorwire.transports import lends

        if rate and window > 1:
            raise typer.BadParameter("calls at a --rate have no window", param_hint="--window")
        others = [each for each in names() if each != OWN]
        compared = Peers.of(peers, others, find)
        chosen = [*(LIMITS if limits else ()), *compared.chosen]
        ahead = transports(transport)
        link = None
        if network:
            if serve or connect:
                raise typer.BadParameter("it is for one host", param_hint="--network")
            link = usage("--network", _link, network)
            ahead = [each for each in ahead if each in REACHING]
        ideas = choices("--without", without, (*IDEAS, ZERO_COPY)) if without else []
        origins = choices("--origin", origin, ORIGINS)
        if ZERO_COPY in ideas:  # which is what ordinary rows are without, beside published ones
            ideas.remove(ZERO_COPY)
            origins = [*ORIGINS]
            if not any(map(lends, ahead)):
                raise typer.BadParameter(
                    f"{', '.join(ahead)} sends any memory as it lies: {ZERO_COPY} is no choice",
                    param_hint="--without",
                )
        if PIPELINING in ideas and window == 1:
            raise typer.BadParameter(
                f"{PIPELINING} is calls under way together: give --window 8, too",
                param_hint="--without",
            )
        for idea in ideas:
            same = [why_same(idea, each) for each in ahead]
            if ahead and all(same):
                reasons = "; ".join(dict.fromkeys(map(str, same)))
                raise typer.BadParameter(f"{idea}: {reasons}", param_hint="--without")
        ranks: Ranks | None = context.obj
        far = serve or connect or (ranks is not None and not ranks.near)
        token = usage("--token-file", Token.of, token_file) if far else None
        if serve:
            if connect:
                raise typer.BadParameter("serve there, connect here", param_hint="--connect")
            assert token is not None
            serving = dict.fromkeys(each.contender for each in entries(ahead, chosen, ideas))
            raise typer.Exit(remote.serve(list(serving), ip, port, token))

        where = words("--connect", connect) if connect else []
        mimic = name == "mimic"
        sizes = usage(
            "--small, --medium, --large",
            lambda texts: Sizes(*map(_bytes, texts)),
            (small, medium, large),
        )
        of = categories or ("large" if mimic else ",".join(CATEGORIES))
        kinds = tuple(choices("--categories", of, CATEGORIES))
        mix = Mix(sizes, kinds, 1, bias, pattern, seed)
        counts = [
            usage("--buffers", _count, word)
            for word in words("--buffers", buffers or ("2,4,8" if mimic else "10"))
        ]
        schemes = choices("--scheme", scheme, SCHEMES)
        workloads = [
            each
            for word in words("--payload", payload)
            for each in usage(
                _OF_SCHEMES if word == "scheme" else "--payload",
                _workloads(schemes, mix, counts),
                word,
            )
        ]
        people = usage(
            "--both-ways" if both_ways else "--servers, --workers",
            lambda given: (
                topology(name, *given, where, both_ways)
                if ranks is None
                else topology_of_ranks(name, ranks.size, *given, both_ways)
            ),
            (servers, workers),
        )
        wanted = Options(
            benchmark=name,
            workloads=workloads,
            modes=choices("--mode", mode, MODES),
            origins=origins,
            reads=[word == "yes" for word in choices("--reads", reads, ("no", "yes"))],
            topology=people,
            transports=ahead,
            peers=chosen,
            rounds=rounds,
            seconds=seconds,
            settings=Settings(warm_up, rate, monitor, str(token.file) if token else "", link),
            without=ideas,
            # One that makes no difference on some transports is measured on the others.
            may_lack=[*compared.may_lack, *(f"{OWN}-without-{idea}" for idea in ideas)],
            remote=usage("--connect", lambda where: remote.look_up(where, port, token), where),
            window=window,
        )
        if "serialized" in wanted.modes:
            from tensorwire.bench.suites.rpc.messages import check_payload

            usage("--mode", check_payload, "protobuf")
        measure(
            "--peers",
            lambda of: Payloads.of(of, ranks),
            wanted,
            output,
            json_,
            plot,
            draw,
            csv=csv,
        )

    return app


def _link(text: str) -> Link:
    """ValueError also where no such network can be made."""
    from tensorwire.bench.harness.network import Link, NetworkError, hosts

    link = Link.of(text)
    try:
        with hosts(link, 1):
            return link
    except NetworkError as error:
        raise ValueError(str(error)) from None


def _bytes(text: str) -> int:
    from tensorwire.bench.harness.work import parse_size

    return parse_size(text, multiple=1)


def _count(word: str) -> int:
    if not (word.isascii() and word.isdigit()):
        raise ValueError(f"{word!r} is no number of buffers: write 10")
    return int(word)


def _workloads(
    schemes: list[str], mix: object, counts: list[int]
) -> Callable[[str], list[Workload]]:
    """By a word of --payload."""
    from dataclasses import replace

    from tensorwire.bench.suites.tf_grpc import payloads
    from tensorwire.bench.suites.tf_grpc.replay import of_trace

    assert isinstance(mix, payloads.Mix)

    def made(word: str) -> list[Workload]:
        kind, _, of = word.partition(":")
        if kind == "model" and of:
            return [payloads.of_model(of)]
        if kind == "trace" and of:
            return [of_trace(Path(of))]
        if word != "scheme":
            raise ValueError(f"{word!r} is neither scheme nor model:NAME nor trace:FILE")
        found = []
        for scheme in schemes:
            for count in counts if scheme != "custom" else [1]:
                each = payloads.workload(scheme, replace(mix, buffers=count))
                many = len(counts) > 1 and scheme != "custom"
                found.append(replace(each, name=f"{scheme} of {count}") if many else each)
        return found

    return made
