# SPDX-License-Identifier: Apache-2.0
"""``make demo``: a network learns handwritten digits on a parameter server and two workers, over
stock gRPC and over tensorwire, with the same seed: the same losses, in less time."""

from __future__ import annotations

import argparse
from pathlib import Path

from tensorwire import signals
from tensorwire.bench.files import check_plot
from tensorwire.bench.terminal import progress_bar
from tensorwire.bench.train import compare
from tensorwire.bench.train.command import LOCAL, started
from tensorwire.bench.train.options import STOCK, TENSORWIRE, Options
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tensorwire.bench.train.demo")
    parser.add_argument(
        "--plot", type=Path, default=Path("build/demo.png"), help="default %(default)s"
    )
    parser.add_argument("--steps", type=int, default=NETWORK.num_batches)
    arguments = parser.parse_args()
    try:
        check_plot(arguments.plot)
    except ValueError as error:
        parser.error(str(error))
    screen = console()
    screen.print(
        f"Five fully connected layers (204 MiB of parameters) learn digits on {LOCAL}: "
        "each step of each worker reads all parameters and sends all gradients.",
        highlight=False,
    )
    with progress_bar() as progress:
        report = started(
            lambda: compare.run(
                NETWORK.but(num_batches=arguments.steps),
                LOCAL,
                1,
                environment={},
                progress=progress,
                contenders=(STOCK, TENSORWIRE),
            )
        )
    compare.print_table(report, screen)
    if report["interrupted"]:
        raise KeyboardInterrupt
    first, last = (report["curves"][TENSORWIRE]["losses"][place] for place in (0, -1))
    compare.draw(report, arguments.plot)
    screen.print(
        f"Loss {first:.3f} to {last:.3f}; over steps and over time: {arguments.plot}",
        highlight=False,
    )


if __name__ == "__main__":
    with signals.ending():
        main()
