"""A TensorFlow server in a process of its own, for tests: started by ``conftest.Cluster``.

Says ``ready``, then answers lines on standard input: ``stats`` with what went which way, as JSON.
It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    import tensorflow as tf
    import tensorwire.tensorflow as tt

    if order["late"]:
        tf.constant(1.0)  # TensorFlow has made its devices
    if order["protocol"] != tt.STOCK_PROTOCOL:
        tt.enable()
    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=4, intra_op_parallelism_threads=1
    )
    config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
    servers = [
        tf.distribute.Server(
            order["cluster"],
            job_name=job,
            task_index=task,
            protocol=order["protocol"],
            config=config,
        )
        for job, task in order["tasks"]
    ]
    print("ready", len(servers), flush=True)
    for line in sys.stdin:
        if line.strip() == "stats":
            print(json.dumps(tt.stats()), flush=True)
    os._exit(0)  # servers of TensorFlow cannot be shut down


if __name__ == "__main__":
    main()
