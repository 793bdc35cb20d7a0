# SPDX-License-Identifier: Apache-2.0
"""What ranks run that a launcher starts. Each prints one line of JSON."""

from __future__ import annotations

import json

import tensorwire.horovod.torch as hvd
import torch

if __name__ == "__main__":
    torch.set_num_threads(1)
    hvd.init()
    ranks = hvd.allgather(torch.tensor([hvd.rank()])).tolist()
    print(json.dumps({"rank": hvd.rank(), "local": hvd.local_rank(), "ranks": ranks}))
