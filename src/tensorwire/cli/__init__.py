# SPDX-License-Identifier: Apache-2.0
"""The ``tensorwire`` command: a file for each command, and what they share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import typer

from tensorwire.cli.group import Group


class Commands(Group):
    """All commands: what ends them from outside ends them in order."""

    home = __name__
    summaries: ClassVar = {
        "train": "Train a network on a TensorFlow cluster and print its speed, as "
        "tf_cnn_benchmarks does.",
        "run": "Run a TensorFlow or JAX program as it is, with tensorwire between its processes.",
        "trace": "Run a program, and show the protocol steps of every link in all of its "
        "processes.",
        "profile": "Run a program, and show how large its messages are, and by which protocol they "
        "went.",
        "doctor": "Show what this host has, what calls to TARGET would get, and what mends the "
        "rest.",
        "bench": "Measure Tensorwire against others.",
        "graph": "Show which tensors cross machines in a step of a program, and what memory that "
        "takes.",
        "report": "Make a page of figures: one HTML file, which needs no network.",
        "tune": "Measure what is fastest on this host, and keep that for programs to use.",
    }

    def invoke(self, ctx: Any) -> Any:
        from tensorwire import signals

        with signals.ending():
            return super().invoke(ctx)


app = typer.Typer(
    name="tensorwire",
    cls=Commands,
    help="Tensor communication for gRPC services and distributed training.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def main() -> None:
    app()


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(installed("tensorwire"))
        raise typer.Exit
