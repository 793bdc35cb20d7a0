# SPDX-License-Identifier: Apache-2.0
"""``tensorwire run``: a program, with tensorwire as its TensorFlow's transport and as its JAX's
collectives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Annotated

import typer

from tensorwire.cli.group import Command, single
from tensorwire.cli.options import Program, starting, usage

app = single()


@app.command(
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
    epilog="Examples:\n\n"
    "[bold]tensorwire run --stats -- python train.py[/]\n\n"
    "[bold]tensorwire run --launch ps=1,worker=2 -- python train.py[/]  (TF_CONFIG)\n\n"
    "[bold]tensorwire run --launch ps=1,worker=2 -- python train.py --job_name={job} "
    "--task_index={index} --ps_hosts={ps_hosts} --worker_hosts={worker_hosts}[/]\n\n"
    "Exit codes: the program's; with --launch 0, or that of the first process that failed; "
    "2 wrong usage, 127 no such program.",
)
def run(
    command: Program,
    stats: Annotated[
        bool, typer.Option("--stats", help="Each process prints at its end what went which way.")
    ] = False,
    launch: Annotated[
        str | None,
        typer.Option(
            metavar="JOB=COUNT,...",
            help="Run a cluster on this machine: the program once for each task of these jobs.",
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --launch, for Horovod's elastic programs: the others go on when a process "
            "fails, and so many are started again.",
        ),
    ] = None,
    fallback: Annotated[
        bool,
        typer.Option("--fallback", help="Use stock gRPC where the plugin cannot be had."),
    ] = False,
) -> None:
    """Run a TensorFlow or JAX program as it is, with tensorwire between its processes.

    TensorFlow's servers that ask for grpc get tensorwire; so do JAX's collectives on CPUs, unless
    the environment names others.

    With --launch each process finds the cluster in TF_CONFIG and in {job}, {index}, {ps_hosts},
    {worker_hosts} (and so on for each job) in its arguments. Output is prefixed; signals are passed
    on; all processes end when one fails (but see --restarts), and ps once the others have ended.
    """
    import os

    from tensorwire import jax
    from tensorwire import launch as launcher
    from tensorwire.launch.output import tell
    from tensorwire.tensorflow.run import environment

    if restarts is not None and launch is None:
        raise typer.BadParameter("needs --launch", param_hint="--restarts")
    added = environment(stats=stats, fallback=fallback)
    of_jax = jax.environment()
    if not of_jax.keys() & os.environ.keys():
        added |= of_jax
    if launch is not None:
        cluster = usage("--launch", launcher.cluster, launch)
        for task in cluster.tasks:
            usage("--launch", partial(cluster.fill, task=task), command)
        with _store() if restarts is not None else nullcontext("") as store:
            if store:
                added = {**added, "TENSORWIRE_STORE": store}
            ended = launcher.run(
                cluster,
                command,
                environment=added,
                restarts=restarts,
                restarted={"TENSORWIRE_REJOIN": "1"},
            )
        if ended.why:
            told = ended.signalled is not None
            tell(ended.why, lambda waited: waited < launcher.DRAIN_SECONDS or not told)
        raise typer.Exit(ended.code)
    with starting():
        launcher.become(command, added)


@contextmanager
def _store() -> Iterator[str]:
    """Where ranks meet, which outlives each of them; its address."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    from tensorwire.collective import store_service

    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((store_service(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)
