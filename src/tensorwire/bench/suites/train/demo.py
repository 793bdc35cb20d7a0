# SPDX-License-Identifier: Apache-2.0
"""``make demo``: a network learns handwritten digits on a parameter server and two workers, over
stock gRPC and over tensorwire, with the same seed: the same losses, in less time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensorwire import signals
from tensorwire.bench.harness.files import check_plot, save
from tensorwire.bench.harness.report import print_report
from tensorwire.bench.harness.terminal import progress_bar
from tensorwire.bench.suites.train import compare
from tensorwire.bench.suites.train.command import LOCAL, parsed, started
from tensorwire.bench.suites.train.options import STOCK, TENSORWIRE, Options
from tensorwire.terminal import console

NETWORK = Options(
    model="fcn5",
    data_name="digits",
    batch_size=16,
    num_batches=40,
    learning_rate=0.02,
    display_every=1,
    weight_decay=0.0,
)


def demo(
    plot: Annotated[Path, typer.Option(help="Draw the losses into this file.")] = Path(
        "build/demo.png"
    ),
    steps: Annotated[int, typer.Option(min=1, help="Of each worker.")] = NETWORK.num_batches,
) -> None:
    """A network learns handwritten digits over stock gRPC and over tensorwire, side by side."""
    parsed("plot", check_plot, plot)
    screen = console()
    screen.print(
        f"Five fully connected layers (204 MiB of parameters) learn digits on {LOCAL}: "
        "each step of each worker reads all parameters and sends all gradients.",
        highlight=False,
    )
    with progress_bar() as progress:
        report, complete = started(
            lambda: compare.run(
                NETWORK.but(num_batches=steps),
                LOCAL,
                1,
                environment={},
                progress=progress,
                contenders=(STOCK, TENSORWIRE),
            )
        )
    print_report(report, compare.LAYOUT, screen)
    if report.interrupted:
        raise KeyboardInterrupt
    if not complete:
        raise typer.Exit(1)
    first, last = (report.details["curves"][TENSORWIRE]["losses"][place] for place in (0, -1))
    screen.print(
        f"Loss {first:.3f} to {last:.3f}; over steps and over time: {plot}", highlight=False
    )
    raise typer.Exit(0 if save(plot, lambda path: compare.draw(report, path)) else 1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(signals.ending()(demo))
    app()
