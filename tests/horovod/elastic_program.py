# SPDX-License-Identifier: Apache-2.0
"""What ranks of the test of ``hvd.elastic`` with PyTorch run, and the one that is started again.
Each prints one line of JSON."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import tensorwire.horovod.torch as hvd
import torch

BATCH = 2


@hvd.elastic.run  # type: ignore[untyped-decorator, unused-ignore]
def train(state: Any) -> None:
    samples: Any = range(24)
    for index in torch.utils.data.DataLoader(samples, BATCH, sampler=state.sampler):
        if state.step == 2 and job == "worker1" and not again:
            os.kill(os.getpid(), 9)
        while state.step == 4 and hvd.size() == 1:
            state.check_host_updates()
            time.sleep(0.01)
        state.optimizer.zero_grad()
        state.model(torch.ones(2, 3) * index.sum()).square().mean().backward()
        state.optimizer.step()
        state.sampler.record_batch(state.step, BATCH)
        state.done += hvd.allgather(index).tolist()
        state.sizes.append(hvd.size())
        state.step += 1
        state.commit()


if __name__ == "__main__":
    torch.set_num_threads(1)
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    job = f"{task['type']}{task['index']}"
    again = "TENSORWIRE_REJOIN" in os.environ
    hvd.init()
    torch.manual_seed(hvd.rank() + 2 * again)
    model = torch.nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    resets: list[int] = []
    state = hvd.elastic.TorchState(
        model,
        optimizer,
        sampler=hvd.elastic.ElasticSampler(range(24)),
        step=0,
        done=[],
        sizes=[],
    )
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    train(state)
    parameters = [each.tolist() for each in model.parameters()]
    print(json.dumps([sorted(state.done), state.sizes, resets, parameters]))
