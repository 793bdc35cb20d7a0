# SPDX-License-Identifier: Apache-2.0
"""What ranks of the test of restarts run, under torchrun: in the first attempt one of them dies.
The second one prints a line of JSON on each rank."""

from __future__ import annotations

import json
import os

import torch.distributed as dist

import torch


def main() -> None:
    dist.init_process_group("tensorwire")
    rank, size = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    everybody = dist.new_group(list(range(size)))
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    dist.all_reduce(total, group=everybody)
    if attempt == 0 and rank == 1:
        os._exit(3)
    dist.barrier()
    print(json.dumps({"rank": rank, "attempt": attempt, "total": total.item()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
