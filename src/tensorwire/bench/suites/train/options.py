# SPDX-License-Identifier: Apache-2.0
"""What ``tensorwire train`` is asked to do, and whether that can be done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tensorwire.bench.suites.train import data
from tensorwire.bench.suites.train.models import find as find_model

HOROVOD = "horovod"
SERVERLESS = ("collective_all_reduce", HOROVOD)
"""Workers that add up gradients between themselves."""
UPDATES = ("parameter_server", "distributed_replicated", *SERVERLESS, "independent")
REPLICATED = "replicated"
"""tf_cnn_benchmarks' way for several devices in one process; with one, that is ``independent``."""
OPTIMIZERS = ("sgd", "momentum", "rmsprop")
DEVICES = ("cpu", "gpu")
STOCK = "grpc"
TENSORWIRE = "grpc+tensorwire"
PROTOCOLS = (STOCK, TENSORWIRE)
WARMUP = 10


class OptionError(ValueError):
    """An option, or options together, that cannot be meant. option: which, with underscores."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True)
class Options:
    """The options of one process; names, meaning and defaults are those of tf_cnn_benchmarks.

    batch_size: images in one step of this process; 0 for the model's own.
    learning_rate, num_warmup_batches, device, num_intra_threads: None for what suits the rest.
    output: where to write the result as JSON.
    """

    model: str = "trivial"
    batch_size: int = 0
    num_batches: int = 100
    num_warmup_batches: int | None = None
    num_gpus: int = 1
    display_every: int = 10
    data_dir: Path | None = None
    data_name: str | None = None
    device: str | None = None
    local_parameter_device: str = "cpu"
    data_format: str = "NHWC"
    num_intra_threads: int | None = None
    num_inter_threads: int = 0
    optimizer: str = "sgd"
    learning_rate: float | None = None
    momentum: float = 0.9
    weight_decay: float = 4e-5
    gradient_clip: float | None = None
    forward_only: bool = False
    variable_update: str = "parameter_server"
    job_name: str = ""
    ps_hosts: list[str] = field(default_factory=list)
    worker_hosts: list[str] = field(default_factory=list)
    task_index: int = 0
    server_protocol: str = STOCK
    cross_replica_sync: bool = True
    tf_random_seed: int = 1234
    output: Path | None = None

    @property
    def warmup(self) -> int:
        return WARMUP if self.num_warmup_batches is None else self.num_warmup_batches

    @property
    def batch(self) -> int:
        return self.batch_size or find_model(self.model).batch

    @property
    def workers(self) -> int:
        """How many train together."""
        return len(self.worker_hosts) if self.job_name else 1

    def input_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of what the model reads."""
        model, data_set = find_model(self.model), self.data_set()
        if data_set is None:
            return model.shape
        height, width, channels = data_set.shape
        return (height, width, channels) if model.rows else (*model.shape[:2], channels)

    def classes(self) -> int:
        data_set = self.data_set()
        return find_model(self.model).classes if data_set is None else data_set.classes

    def data_set(self) -> data.DataSet | None:
        """None for synthetic inputs of the model's own shape."""
        if self.data_name is not None:
            return data.find(self.data_name)
        return data.guess(self.data_dir) if self.data_dir is not None else None

    def arguments(self) -> list[str]:
        """The command line that means these options."""
        words = []
        for option in fields(self):
            value = getattr(self, option.name)
            if value != (
                option.default_factory() if callable(option.default_factory) else option.default
            ):
                text = ",".join(value) if isinstance(value, list) else str(value)
                words.append(f"--{option.name}={text}")
        return words

    def check(self) -> Options:
        """Raises OptionError when these options do not go together. Returns them."""
        for check in (_check_values, _check_names, _check_cluster):
            check(self)
        return self

    def but(self, **changes: Any) -> Options:
        return replace(self, **changes)


def hosts(text: str) -> list[str]:
    """The addresses of a comma list. ValueError for one that is not host:port."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    for address in found:
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{address!r} is not an address; write host:port")
    if len(set(found)) < len(found):
        raise ValueError("an address is there twice")
    return found


def boolean(text: str) -> bool:
    """As tf_cnn_benchmarks reads them, but refusing what is neither. ValueError."""
    word = text.strip().lower()
    if word in ("true", "t", "yes", "1"):
        return True
    if word in ("false", "f", "no", "0"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def _check_values(options: Options) -> None:
    if options.variable_update == REPLICATED:
        raise OptionError(
            "variable_update",
            "'replicated' is for several devices in one process, which has one here: in a cluster, "
            "use distributed_replicated or collective_all_reduce",
        )
    for name, allowed in (
        ("variable_update", UPDATES),
        ("optimizer", OPTIMIZERS),
        ("local_parameter_device", DEVICES),
        ("server_protocol", PROTOCOLS),
    ):
        if getattr(options, name) not in allowed:
            value = getattr(options, name)
            raise OptionError(name, f"{value!r} is none of {', '.join(allowed)}")
    if options.device not in (None, *DEVICES):
        raise OptionError("device", f"{options.device!r} is none of {', '.join(DEVICES)}")
    if options.data_format != "NHWC":
        raise OptionError(
            "data_format",
            f"{options.data_format!r} is not supported: use NHWC, the format of TensorFlow's "
            "kernels for the CPU, or leave it out",
        )
    if options.num_gpus != 1:
        raise OptionError(
            "num_gpus",
            f"{options.num_gpus} is not supported: each process trains on one device, so set 1 and "
            "start a worker for each device",
        )
    least = {"batch_size": 0, "num_batches": 1, "num_warmup_batches": 0, "display_every": 1}
    least |= {"task_index": 0, "num_inter_threads": 0, "num_intra_threads": 0}
    for name, lowest in least.items():
        value = getattr(options, name)
        if value is not None and value < lowest:
            raise OptionError(name, f"{value} is less than {lowest}")


def _check_names(options: Options) -> None:
    _as_wrong("model", lambda: find_model(options.model))
    if options.data_name is not None:
        name = options.data_name
        _as_wrong("data_name", lambda: data.find(name))
    if options.data_dir is not None:
        if not options.data_dir.is_dir():
            raise OptionError("data_dir", f"there is no folder {options.data_dir}")
        _as_wrong("data_dir", options.data_set)


def _as_wrong(option: str, look: Callable[[], object]) -> None:
    try:
        look()
    except ValueError as error:
        raise OptionError(option, str(error)) from None


def _check_cluster(options: Options) -> None:
    update = options.variable_update
    if not options.job_name:
        if options.ps_hosts or options.worker_hosts:
            raise OptionError("job_name", "with hosts, say whether this is the ps or a worker")
        if update in ("distributed_replicated", *SERVERLESS):
            raise OptionError(
                "variable_update", f"{update} is for several processes: give job_name"
            )
        return
    if options.job_name not in ("ps", "worker"):
        raise OptionError("job_name", f"{options.job_name!r} is neither ps nor worker")
    if update == "independent":
        raise OptionError("variable_update", "independent workers are no cluster: no job_name")
    if not options.worker_hosts:
        raise OptionError("worker_hosts", "a cluster needs them, as host:port,host:port")
    if update in SERVERLESS:
        if options.ps_hosts or options.job_name == "ps":
            raise OptionError("ps_hosts", f"{update} has no parameter servers")
        if update == HOROVOD and options.server_protocol != STOCK:
            raise OptionError(
                "server_protocol", "is of TensorFlow's servers; horovod has none: leave it out"
            )
    elif not options.ps_hosts:
        raise OptionError("ps_hosts", f"{update} needs at least one parameter server, as host:port")
    peers = options.ps_hosts if options.job_name == "ps" else options.worker_hosts
    if options.task_index >= len(peers):
        raise OptionError(
            "task_index",
            f"{options.task_index}, but {options.job_name}_hosts has {len(peers)} of them, from 0",
        )
    both = set(options.ps_hosts) & set(options.worker_hosts)
    if both:
        raise OptionError("ps_hosts", f"{', '.join(sorted(both))} is in worker_hosts, too")
    if options.forward_only and update in SERVERLESS:
        raise OptionError("forward_only", "has no gradients to reduce")
