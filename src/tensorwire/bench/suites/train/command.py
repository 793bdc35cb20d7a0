# SPDX-License-Identifier: Apache-2.0
"""The ``tensorwire train`` command line: tf_cnn_benchmarks' flags, with _ or - between words."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from tensorwire import signals
from tensorwire.bench.harness.files import check_file, check_plot, save
from tensorwire.bench.suites.train.models import MODELS
from tensorwire.bench.suites.train.options import (
    DEVICES,
    OPTIMIZERS,
    REPLICATED,
    TENSORWIRE,
    UPDATES,
    OptionError,
    Options,
    boolean,
    hosts,
)

if TYPE_CHECKING:
    from tensorwire.bench.harness.rows import Report

T = TypeVar("T")
U = TypeVar("U")

LOCAL = "ps=1,worker=2"
ROUNDS = 3
EPILOG = (
    "Examples:\n\n"
    "[bold]tensorwire train --local ps=1,worker=2 --server_protocol grpc+tensorwire --model lenet"
    "[/]\n\n"
    "[bold]tensorwire train --compare --model alexnet --batch_size 2[/]\n\n"
    "[bold]tensorwire train --model lenet --data_name digits --num_batches 200[/]\n\n"
    "[bold]tensorwire train --job_name ps --ps_hosts a:5000 --worker_hosts b:5000,c:5000[/]  "
    "and so for each process, with its --task_index\n\n"
    "Exit codes: 0 done, 1 training failed or a file could not be written, 2 wrong usage; with "
    "--local or --compare that of the first process that failed (1 where --compare has figures of "
    "other contenders), 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."
)


def spelled_with_dashes(token: str) -> str:
    return token.replace("_", "-")


SETTINGS: dict[str, Any] = {
    "context_settings": {"token_normalize_func": spelled_with_dashes},
    "epilog": EPILOG,
}


def one_of(words: tuple[str, ...]) -> str:
    return f"{', '.join(words)}."


def train(
    model: Annotated[str, typer.Option(help=one_of(tuple(MODELS)))] = "trivial",
    batch_size: Annotated[int, typer.Option(help="Of one worker; 0: the model's own.")] = 0,
    num_batches: Annotated[int, typer.Option(help="Steps, without the warm-up.")] = 100,
    num_warmup_batches: Annotated[
        int | None, typer.Option(help="Steps before measuring.", show_default="10")
    ] = None,
    num_gpus: Annotated[
        int, typer.Option("--num-gpus", "--num-gpu", help="Devices of a process: 1.")
    ] = 1,
    display_every: Annotated[int, typer.Option(help="Steps between two lines.")] = 10,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of real data.", show_default="synthetic data")
    ] = None,
    data_name: Annotated[
        str | None,
        typer.Option(
            help="imagenet, mnist, cifar10 or digits (real without a folder).",
            show_default="what data_dir holds",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Where a worker computes: " + one_of(DEVICES), show_default="gpu if there is one"
        ),
    ] = None,
    local_parameter_device: Annotated[
        str, typer.Option(help="Where parameters lie: " + one_of(DEVICES))
    ] = "cpu",
    data_format: Annotated[str, typer.Option(help="NHWC only.")] = "NHWC",
    num_intra_threads: Annotated[
        int | None,
        typer.Option(help="Threads of one operation; 0: as many as cores.", show_default="0"),
    ] = None,
    num_inter_threads: Annotated[
        int, typer.Option(help="Threads for operations side by side; 0: TensorFlow's choice.")
    ] = 0,
    optimizer: Annotated[str, typer.Option(help=one_of(OPTIMIZERS))] = "sgd",
    learning_rate: Annotated[float | None, typer.Option(show_default="the model's own")] = None,
    momentum: Annotated[float, typer.Option(help="Of momentum and rmsprop.")] = 0.9,
    weight_decay: Annotated[float, typer.Option()] = 4e-5,
    gradient_clip: Annotated[
        float | None, typer.Option(help="No element of a gradient is larger.")
    ] = None,
    forward_only: Annotated[str, typer.Option(help="true: no gradients, no training.")] = "false",
    variable_update: Annotated[
        str, typer.Option(help="How workers agree: " + one_of(UPDATES))
    ] = "parameter_server",
    job_name: Annotated[str, typer.Option(help="ps or worker.", show_default="no cluster")] = "",
    ps_hosts: Annotated[str, typer.Option(help="host:port,... of the parameter servers.")] = "",
    worker_hosts: Annotated[str, typer.Option(help="host:port,... of the workers.")] = "",
    task_index: Annotated[int, typer.Option(help="Number of this process in its job.")] = 0,
    server_protocol: Annotated[
        str, typer.Option(help="grpc (stock TensorFlow), grpc+tensorwire.")
    ] = "grpc",
    cross_replica_sync: Annotated[
        str, typer.Option(help="Whether all workers finish a step before the next begins.")
    ] = "true",
    tf_random_seed: Annotated[int, typer.Option()] = 1234,
    output: Annotated[Path | None, typer.Option(help="Write the JSON object to this file.")] = None,
    local: Annotated[
        str | None,
        typer.Option(metavar="JOB=COUNT,...", help=f"The whole cluster here, such as {LOCAL}."),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="The local cluster over grpc, over grpc+tensorwire, and without communication.",
        ),
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Of --compare: runs of each.", show_default="3")
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(
            help="The only one that tensorwire may take: shm, verbs, tcp.",
            show_default="the best",
        ),
    ] = None,
    plans: Annotated[
        bool,
        typer.Option(
            "--plans",
            help="Of --compare: only grpc+tensorwire, without and with planned transfers.",
        ),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Of --compare: draw the losses into this file.")
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Train a network on a TensorFlow cluster and print its speed, as tf_cnn_benchmarks does.

    Each process of a cluster runs this command with its own --job_name and --task_index; --local
    runs all of them on this machine, --compare the same work over each protocol in turn.
    """
    if variable_update == REPLICATED and not (job_name or local or compare):
        print("tensorwire train: replicated on one device is independent", file=sys.stderr)
        variable_update = "independent"
    options = checked(
        lambda: Options(
            model=model,
            batch_size=batch_size,
            num_batches=num_batches,
            num_warmup_batches=num_warmup_batches,
            num_gpus=num_gpus,
            display_every=display_every,
            data_dir=data_dir,
            data_name=data_name,
            device=device,
            local_parameter_device=local_parameter_device,
            data_format=data_format,
            num_intra_threads=num_intra_threads,
            num_inter_threads=num_inter_threads,
            optimizer=optimizer,
            learning_rate=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            gradient_clip=gradient_clip,
            forward_only=parsed("forward_only", boolean, forward_only),
            variable_update=variable_update,
            job_name=job_name,
            ps_hosts=parsed("ps_hosts", hosts, ps_hosts),
            worker_hosts=parsed("worker_hosts", hosts, worker_hosts),
            task_index=task_index,
            server_protocol=server_protocol,
            cross_replica_sync=parsed("cross_replica_sync", boolean, cross_replica_sync),
            tf_random_seed=tf_random_seed,
            output=output,
        )
    )
    if not compare:
        for name, value in (("rounds", rounds), ("plans", plans or None), ("plot", plot)):
            if value is not None:
                raise wrong(name, ValueError("is of --compare: add that, or leave this out"))
    for name, path, check in (("output", output, check_file), ("plot", plot, check_plot)):
        if path is not None:
            parsed(name, check, path)
    cluster = LOCAL if compare and local is None else local
    environment = checked(lambda: environment_for(transport, options, cluster, compare))
    if cluster is None:
        checked(options.check)
        os.environ.update(environment)  # read when the server protocol is loaded
        result = one_process(options, sys.stderr if json_ else sys.stdout)
        if result is None:
            return
        saved = save(output, lambda path: path.write_text(json.dumps(result) + "\n"))
        if json_:
            print(json.dumps(result, indent=2))
        raise typer.Exit(0 if saved else 1)
    if compare:
        from tensorwire.bench.harness.handover import hand_over
        from tensorwire.bench.suites.train.compare import LAYOUT, draw

        report, complete = comparison(options, cluster, environment, rounds or ROUNDS, plans)
        saved = hand_over(report, LAYOUT, output, json_, plot, draw) and complete
    else:
        outcome = whole_cluster(options, cluster, environment, json_)
        saved = save(output, lambda path: path.write_text(json.dumps(outcome, indent=2) + "\n"))
        if json_:
            print(json.dumps(outcome, indent=2))
    raise typer.Exit(0 if saved else 1)


def environment_for(
    transport: str | None, options: Options, cluster: str | None, compare: bool
) -> dict[str, str]:
    """What makes tensorwire take only this transport. OptionError where none can be meant."""
    if transport is None:
        return {}
    from tensorwire.transports import names

    if transport not in names():
        raise OptionError("transport", f"{transport!r} is none of {', '.join(names())}")
    if cluster is None and not options.job_name:
        raise OptionError(
            "transport", "a process on its own has no peers: give --job_name, --local or --compare"
        )
    if not compare and options.server_protocol != TENSORWIRE:
        raise OptionError(
            "transport",
            f"is of tensorwire, not of {options.server_protocol}: add "
            f"--server_protocol {TENSORWIRE}, or leave this out",
        )
    return {"TENSORWIRE_TRANSPORT": transport}


def one_process(options: Options, sink: Any) -> dict[str, Any] | None:
    def show(line: str) -> None:
        sink.write(line + "\n")  # in one piece: processes of a cluster may share a terminal
        sink.flush()

    try:
        from tensorwire.bench.suites.train import task
    except ModuleNotFoundError as missing:
        if missing.name != "tensorflow":
            raise
        end("TensorFlow is missing: pip install 'tensorwire[tensorflow]'")
    from tensorwire.tensorflow import PluginError

    try:
        return task.run(options, show)
    except (ValueError, PluginError) as error:
        end(str(error))
    except task.TrainingError as error:
        print(f"tensorwire train: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def whole_cluster(
    options: Options, spec: str, environment: dict[str, str], quiet: bool
) -> dict[str, Any]:
    """The result of each worker. quiet: the lines go to standard error."""
    from tensorwire.bench.suites.train import local

    def show(job: str, index: int, line: str) -> None:
        sys.stderr.write(f"[{job} {index}] {line}\n")

    outcome = started(
        lambda: local.run(options, spec, show=show if quiet else None, environment=environment)
    )
    return {"workers": outcome.workers, "servers": outcome.servers}


def comparison(
    options: Options, spec: str, environment: dict[str, str], rounds: int, plans: bool
) -> tuple[Report, bool]:
    from tensorwire.bench.harness.terminal import progress_bar
    from tensorwire.bench.suites.train import compare

    with progress_bar() as progress:
        return started(
            lambda: compare.run(
                options,
                spec,
                rounds,
                environment=environment,
                progress=progress,
                contenders=compare.PLANS if plans else compare.CONTENDERS,
            )
        )


def started(run: Callable[[], T]) -> T:
    """What ``run`` returns; a cluster that fails or cannot be ends the command."""
    from tensorwire.bench.suites.train.figures import TooShortError
    from tensorwire.bench.suites.train.local import ClusterError

    try:
        return run()
    except OptionError as error:
        raise wrong(error.option, error) from None
    except ClusterError as error:
        end(str(error), error.code)
    except TooShortError as error:
        end(str(error))
    except ValueError as error:
        raise wrong("local", error) from None


def checked(make: Callable[[], T]) -> T:
    try:
        return make()
    except OptionError as error:
        raise wrong(error.option, error) from None


def parsed(option: str, parse: Callable[[U], T], given: U) -> T:
    try:
        return parse(given)
    except ValueError as error:
        raise wrong(option, error) from None


def wrong(option: str, error: ValueError) -> typer.BadParameter:
    return typer.BadParameter(str(error), param_hint=f"--{option}")


def end(why: str, code: int = 1) -> NoReturn:
    print(f"tensorwire train: {why}", file=sys.stderr)
    raise typer.Exit(code)


def solo() -> None:
    """The command by itself."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(**SETTINGS)(signals.ending()(train))
    app()
