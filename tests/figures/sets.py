# SPDX-License-Identifier: Apache-2.0
"""The sets of figures that pages quote: the commands that make each, and the file it is kept in."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tensorwire.bench.harness.network import Link, NetworkError, hosts
from tensorwire.bench.harness.rows import Report
from tensorwire.bench.report.runs import Run, parse

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "benchmarks"
DIGITS: Final = 6
"""Significant ones of a kept figure."""


@dataclass(frozen=True)
class Set:
    """title: of its page; about: what is measured, a sentence or two. seconds: about as long as it
    takes on two cores. headline: whether it is among the few that matter most. apart: whether it is
    measured only where it is named."""

    title: str
    about: str
    commands: Sequence[str]
    seconds: int
    headline: bool = False
    apart: bool = False


_TRAIN: Final = (
    "TF_RDMA_BUF_SIZE=4294967296 tensorwire train --compare --model {} --batch_size {} "
    "--num_batches {} --num_warmup_batches 3 --rounds 1{}"
)
TRAINED: Final = (
    ("alexnet", 2, 15, True),
    ("vgg16", 1, 10, False),
    ("fcn5", 32, 20, False),
    ("fcn5", 1, 20, False),
    ("resnet50", 8, 12, False),
)
"""Model, batch size, batches, and whether TCP alone is measured, too."""
PLANS: Final = {
    **dict.fromkeys(("trivial", "lenet", "softmax", "cifar10_quick", "fcn5", "lstm", "gru"), 40),
    **dict.fromkeys(("googlenet", "inception3", "resnet50", "resnet101"), 15),
    **dict.fromkeys(("alexnet", "overfeat", "vgg11", "vgg16", "vgg19"), 12),
    **dict.fromkeys(("inception4", "resnet152"), 12),
}
"""Batches of each model, of one image each."""
_BRIEFEST: Final = " --seconds 0.1 --warm-up 0.05"
_PAYLOADS_BY: Final = "zmq,gloo,mpi,flight,grpc-aio,grpcio-unix,torch-rpc,ucxx"
_BESIDE: Final = f" --scheme uniform,random,skew --peers {_PAYLOADS_BY}{_BRIEFEST}"
_TRANSFERS: Final = (
    f" --scheme uniform,random,skew --origin ordinary --peers nixl,mooncake,ray{_BRIEFEST}"
)
_NETWORK: Final = "--network 10gbit --origin ordinary --reads no --window 8"
_AGAIN: Final = (
    "tensorwire bench rpc --sizes 8,64K,8M --cases request --origin ordinary --reads no "
    "--no-limits --rounds 9 --seconds 0.05"
)
_SERIALIZED: Final = (
    "tensorwire bench p2p-latency --scheme uniform,skew --mode non-serialized,serialized "
    f"--origin ordinary --reads no --no-limits{_BRIEFEST}"
)
_KEPT_MEMORY: Final = "MALLOC_TRIM_THRESHOLD_=67108864 MALLOC_MMAP_THRESHOLD_=33554432"
"""What docs/tuning.md tells to set."""

LEAST_ROUNDS: Final = 5
FEWER_ROUNDS: Final = {
    "tensorwire train --compare": "each round starts a cluster by each way and trains a network",
    "tensorwire bench rpc --sizes 1G": "two rounds take most of a minute",
    "tensorwire bench weights --peers": "two rounds, of seven contenders, take three minutes",
    "tensorwire bench weights --cases resharded": "a round, with a gibibyte at each of six "
    "processes, takes ten seconds",
    "tensorwire bench weights --cases copied,first": "three rounds, each with new processes, take "
    "more than a minute",
}
"""What commands begin with that have fewer rounds than that, and why."""

SETS: Final[dict[str, Set]] = {
    "rpc": Set(
        "Calls, beside other libraries",
        "Whole calls through Python on both ends, over our transports, stock grpcio, and libraries "
        "that users have for the same purpose.",
        ["tensorwire bench rpc --peers zmq,flight,nixl,mpi --seconds 0.15"],
        300,
        headline=True,
    ),
    "repeated": Set(
        "The same, twice",
        "One command, run twice with nothing changed. The second run beside the first, as "
        "`tensorwire bench compare` tells it: no row of ours should differ by more than its noise.",
        [f"RUN=1 {_AGAIN}", f"RUN=2 {_AGAIN}"],
        15,
        apart=True,
    ),
    "peers": Set(
        "Calls, beside more libraries",
        "The same beside libraries that call or transfer in other ways: asyncio, PyTorch, and the "
        "object stores and transfer engines of clusters.",
        [
            "tensorwire bench rpc --peers grpcio-unix,grpc-aio,gloo,torch-rpc,ray,mooncake,ucxx "
            "--cases request --reads yes --no-limits --seconds 0.1"
        ],
        80,
    ),
    "sizes": Set(
        "Calls over sizes",
        "Requests from an ordinary array, which nobody reads, from nothing to a gibibyte.",
        [
            "tensorwire bench rpc --sizes 0,8,512,4K,16K,64K,256K,1M,4M,16M,64M,256M "
            "--cases request --origin ordinary --reads no --no-limits --seconds 0.15",
            "tensorwire bench rpc --sizes 1G --cases request --origin ordinary --reads no "
            "--no-limits --rounds 2",
        ],
        105,
    ),
    "callers": Set(
        "Eight callers",
        "Eight threads of a client that call at the same time. Ratios are by calls in all.",
        [
            "tensorwire bench rpc --callers 8 --sizes 8,512K,64M --cases request,pull "
            "--origin ordinary --reads no --no-limits --seconds 0.09"
        ],
        70,
    ),
    "bytes": Set(
        "Bytes and protobuf messages",
        "What gRPC programs hand over as it is: ready bytes, and generated protobuf messages.",
        [
            "tensorwire bench rpc --payload bytes,protobuf --sizes 1M,64M --cases request,pull "
            "--reads no --no-limits --seconds 0.1"
        ],
        80,
        headline=True,
    ),
    "protobuf": Set(
        "Tensors in protobuf messages",
        "A tensor in a field of bytes, all of it read, with generated code and with the codec of "
        "tensorwire.protobuf.",
        [
            "tensorwire bench rpc --payload protobuf,protobuf-codec --sizes 8,1M,64M "
            "--cases request,pull --reads yes --seconds 0.06"
        ],
        75,
    ),
    "tensorflow": Set(
        "Steps of TensorFlow sessions",
        "Whole steps of a stock TensorFlow between two processes, by its own gRPC and by ours.",
        ["tensorwire bench tensorflow --sizes 4,1M,16M,64M,256M --seconds 0.3"],
        85,
        headline=True,
    ),
    "training": Set(
        "Training",
        "One parameter server and two workers train a network, by gRPC, by ours, and without any "
        "communication.",
        [
            _TRAIN.format(model, batch, batches, way)
            for model, batch, batches, tcp in TRAINED
            for way in ("", *([" --transport tcp"] if tcp else []))
        ],
        330,
    ),
    "tf-grpc": Set(
        "TF-gRPC-Bench",
        "The benchmarks of TensorFlow's channels after R. Biswas et al. (BPOE-9, 2018): echoes, "
        "acknowledged messages, and three workers that each call two parameter servers.",
        [
            f"tensorwire bench p2p-latency{_BESIDE}",
            f"tensorwire bench p2p-bandwidth{_BESIDE}",
            f"tensorwire bench ps-throughput --servers 2 --workers 3{_BESIDE}",
        ],
        225,
    ),
    "mimic": Set(
        "Fully connected nodes",
        "Four nodes, each of which calls all others with large buffers and gets them back.",
        [f"tensorwire bench mimic --servers 4 --reads no --peers {_PAYLOADS_BY}{_BRIEFEST}"],
        65,
    ),
    "ideas": Set(
        "What each idea gives",
        "Ours beside itself without one idea at a time: with the payloads of all schemes, and with "
        "many small, with medium and with large buffers alone. Above each table stands which ideas "
        "are worth something there, and which are not on this host. Pipelining fills time in which "
        "an end waits, as over a network. Over memory, with two cores, a blocking call keeps both "
        "of them busy, and calls by futures cost more than there is to fill. The last two runs are "
        "between network namespaces with links of 10 Gbit/s, which needs root. An idea that "
        "changes nothing on a transport is left out there: a note says why.",
        [
            "tensorwire bench p2p-latency --scheme uniform,random,skew --origin ordinary "
            "--reads no --without coalescing,eager,rendezvous,spinning,chunking,adaptive "
            f"--no-limits{_BRIEFEST}",
            "tensorwire bench p2p-latency --categories small --buffers 100 --reads no "
            f"--without coalescing,adaptive,spinning --no-limits{_BRIEFEST}",
            "tensorwire bench p2p-latency --categories medium --reads no "
            f"--without eager,rendezvous --no-limits{_BRIEFEST}",
            "tensorwire bench p2p-latency --categories large "
            f"--without rendezvous,chunking --no-limits{_BRIEFEST}",
            "tensorwire bench p2p-bandwidth --categories small --buffers 100 --reads no "
            f"--window 8 --without pipelining --no-limits{_BRIEFEST}",
            "tensorwire bench p2p-bandwidth --categories large "
            f"--window 8 --without pipelining --no-limits{_BRIEFEST}",
            f"tensorwire bench p2p-bandwidth --categories small --buffers 100 {_NETWORK} "
            f"--without coalescing,adaptive,pipelining --no-limits{_BRIEFEST}",
            f"tensorwire bench p2p-bandwidth --scheme uniform,skew {_NETWORK} "
            f"--without chunking,adaptive,pipelining --no-limits{_BRIEFEST}",
        ],
        140,
        apart=True,
    ),
    "serializers": Set(
        "What serializers take",
        "TF-gRPC-Bench with generated protobuf messages: the time that callers spend in "
        "serializers is part of a call, and should not depend on how the message travels. In the "
        "first run page faults are part of it, as glibc gives memory back to the system; which "
        "memory, depends on what else a process frees. In the second run it keeps all of it.",
        [_SERIALIZED, f"{_KEPT_MEMORY} {_SERIALIZED}"],
        28,
        apart=True,
    ),
    "collectives": Set(
        "Collectives",
        "Operations of float32 between two and four ranks of one host, and messages between two.",
        [
            "tensorwire bench collectives --cases all_reduce --sizes 8,64K,1M,8M,64M,256M "
            "--peers gloo,mpich,openmpi --seconds 0.1",
            "tensorwire bench collectives --cases all_reduce --sizes 8,64K,1M,64M --ranks 4 "
            "--peers gloo,mpich,openmpi --seconds 0.1",
            "tensorwire bench collectives --cases all_reduce --sizes 8,1M,64M "
            "--peers gloo,tensorwire-tcp --seconds 0.1",
            "tensorwire bench collectives "
            "--cases broadcast,all_gather,reduce_scatter,all_to_all --sizes 64M "
            "--peers gloo,mpich,openmpi --seconds 0.1",
            "tensorwire bench collectives --cases reduce,gather,scatter,barrier --sizes 64M "
            "--peers gloo,mpich,openmpi --seconds 0.03",
            "tensorwire bench collectives --cases ping_pong,stream --sizes 8,64K,1M "
            "--peers gloo,mpich,openmpi --no-limits --seconds 0.03",
        ],
        145,
    ),
    "types": Set(
        "Collectives of other types",
        "Sums of as many bytes of float32 and of bfloat16, which are computed in float32.",
        [
            "tensorwire bench collectives --cases all_reduce --sizes 64M "
            "--dtype float32,bfloat16 --peers none --seconds 0.1",
        ],
        10,
    ),
    "torch": Set(
        "Steps of PyTorch",
        "Whole training steps with PyTorch's back end of ours and with gloo: with hardly any "
        "computing, and with so much that it fills both processors.",
        [
            "tensorwire bench torch --cases ddp --sizes 96M --compute 0",
            "tensorwire bench torch --cases ddp,fsdp,zero --sizes 6M,16M,64M --seconds 0.3",
        ],
        135,
    ),
    "many": Set(
        "Many small variables",
        "A step of a stock TensorFlow reads 400 variables of another process, by its own gRPC and "
        "by ours, with a call for each and as planned transfers.",
        ["tensorwire bench tensorflow --cases many --seconds 0.2"],
        55,
    ),
    "plans": Set(
        "Training with planned transfers",
        "Every model of `tensorwire train`, one image in a step, without planned transfers and "
        "with them: no model should be slower with them by more than the rounds differ. Losses of "
        "lstm and gru differ in their last bits from run to run, [over stock gRPC, "
        "too](../train.md#how-workers-agree): where those are not equal here, it is no doing of "
        "plans.",
        [
            "TF_RDMA_BUF_SIZE=4294967296 tensorwire train --compare --plans --model "
            f"{model} --batch_size 1 --num_batches {batches} --num_warmup_batches 5 --rounds 3"
            for model, batches in PLANS.items()
        ],
        1800,
        apart=True,
    ),
    "mirrored": Set(
        "MultiWorkerMirroredStrategy",
        "Whole training steps of a stock TensorFlow between two workers, by its own ring over gRPC "
        "and by our groups.",
        ["tensorwire bench tensorflow --cases mirrored --transport shm"],
        45,
    ),
    "remote": Set(
        "Remote memory",
        "One-sided access to the memory of another process.",
        [
            "tensorwire bench remote --peers nixl,mpi --seconds 0.06",
            "tensorwire bench remote --cases jax,jax_published --peers jax --seconds 0.06",
            "tensorwire bench remote --cases prepare --peers nixl --seconds 0.03",
        ],
        65,
    ),
    "weights": Set(
        "Weights",
        "A gibibyte in 298 tensors, all of which change, from a trainer to two receivers, and from "
        "four trainers with rows of each tensor to receivers with other parts of it. Others send "
        "from the trainer's parameters, ours from its arena, into which `publish()` copies all "
        "bytes: in the case `copied` it has done so before the clock runs, in the case `published` "
        "that is counted.",
        [
            "tensorwire bench weights --peers gloo,grpcio,mpich,nixl "
            "--cases copied,adopted,published --rounds 2",
            "tensorwire bench weights --cases resharded --peers none --rounds 3",
        ],
        330,
    ),
    "first": Set(
        "First use",
        "What processes move first, beside what they move later: calls of 64 MiB, and a gibibyte "
        "of weights. The first time should be at most 2.5 times as long.",
        [
            "tensorwire bench rpc --sizes 64M --cases request,first --origin ordinary --reads no "
            "--no-limits --seconds 0.1",
            "tensorwire bench weights --cases copied,first --receivers 1 --peers none --rounds 3",
        ],
        100,
    ),
    "queue": Set(
        "Queues",
        "Several processes put arrays into a bounded queue, one gets them.",
        ["tensorwire bench queue --seconds 0.3"],
        45,
    ),
    "channels": Set(
        "Channels for gradients",
        "A step computes, then averages the gradients of a model over all ranks, by each channel "
        "from one rank to four: how training scales.",
        ["tensorwire bench channels --model googlenet --ranks 1,2,4 --seconds 0.2"],
        320,
        apart=True,
    ),
    "servers": Set(
        "One to eight servers",
        "As many workers as parameter servers, each of which calls all servers, one after the "
        "other: how that scales on one host, whose processors all processes share.",
        [
            f"tensorwire bench ps-throughput --servers {n} --workers {n} --reads no --peers none "
            f"--no-limits{_BRIEFEST}"
            for n in (1, 2, 4, 8)
        ],
        50,
        apart=True,
    ),
    "transfers": Set(
        "TF-gRPC-Bench, beside transfer engines and Ray",
        "The benchmarks of TensorFlow's channels beside libraries that read from memory which the "
        "other end has registered, and beside Ray, whose cluster takes several seconds to start.",
        [
            f"tensorwire bench p2p-latency{_TRANSFERS}",
            f"tensorwire bench p2p-bandwidth{_TRANSFERS}",
            f"tensorwire bench ps-throughput --servers 2 --workers 3{_TRANSFERS}",
        ],
        200,
        apart=True,
    ),
    "staged": Set(
        "Reads in place and through other memory",
        "Reads of another process's memory straight to where they are wanted, and into other "
        "memory, from where they are copied.",
        [
            "tensorwire bench remote --cases read,read_staged --sizes 64K,1M,16M,64M --peers none "
            "--seconds 0.1"
        ],
        15,
        apart=True,
    ),
    "links": Set(
        "Thresholds that were measured",
        "Messages over links with the thresholds that `tensorwire tune links` has chosen, with the "
        "defaults, and with fixed values, of which the fastest at a size is shown: by the "
        "geometric mean of calls and streams, ordinary and published. What was chosen should be "
        "within 5 % of that one at each size, and no shape of messages below 0.9 of the defaults.",
        ["tensorwire tune links --check --output build/links.table"],
        180,
        apart=True,
    ),
}


def file_of(name: str) -> Path:
    return FOLDER / f"{name}.json"


def kept(name: str) -> list[dict[str, Any]]:
    """What the file of the set holds: for each command that was measured ``command``, ``report``,
    and ``seconds`` that it took; nothing where there is no file."""
    if not file_of(name).exists():
        return []
    found: list[dict[str, Any]] = json.loads(file_of(name).read_text())
    return found


def load(name: str) -> list[Report]:
    """What commands of the set wrote. Raises ValueError for a report of another schema."""
    return [Report.from_json(each["report"]) for each in kept(name)]


def runs_of(name: str) -> list[Run]:
    """The same with what reports tell of them."""
    path = file_of(name)
    return parse(path.read_bytes(), path.name)


def outdated(name: str) -> list[str]:
    """Commands of the set that its file does not have: they are new, or were others then."""
    known = {each["command"] for each in kept(name)}
    return [command for command in SETS[name].commands if command not in known]


def measure(name: str) -> bool:
    """Runs the commands of the set, one after the other, and writes the file after each: it then
    has that one and what it had of the others. Whether all of them had all of their figures. One
    whose network cannot be made here has none.

    Raises SystemExit with the code of a command that made none. One that Ctrl-C has ended, with
    KeyboardInterrupt, has no part in the file.
    """
    whole = True
    for command in SETS[name].commands:
        print(f"== {command}", flush=True)
        if (reason := why_no_network(command)) is not None:
            print(f"== left out: {reason}", file=sys.stderr, flush=True)
            whole = False
            continue
        made, complete = _report(command)
        whole &= complete
        known = {each["command"]: each for each in kept(name)} | {command: made}
        FOLDER.mkdir(parents=True, exist_ok=True)
        found = [known[each] for each in SETS[name].commands if each in known]
        file_of(name).write_text(json.dumps(found, indent=1) + "\n")
    return whole


def why_no_network(command: str) -> str | None:
    """Why this host cannot make the network of a command; None where it can, or needs none."""
    words = shlex.split(command)
    if "--network" not in words:
        return None
    try:
        with hosts(Link.of(words[words.index("--network") + 1]), 1):
            return None
    except NetworkError as error:
        return str(error)


def _report(command: str) -> tuple[dict[str, Any], bool]:
    """As the file has it, and whether all that was asked for is in it."""
    words = shlex.split(command)
    first = words.index("tensorwire")
    environment = dict(word.split("=", 1) for word in words[:first])
    before = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        option = "--report" if words[first + 1] == "tune" else "--output"
        argv = [sys.executable, "-m", *words[first:], option, str(output)]
        with subprocess.Popen(argv, env={**os.environ, **environment}) as process:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                process.wait()  # it has had the signal, too, and ends its processes
                raise
        if not output.exists():
            print(f"== it ended with code {code}: {command}", file=sys.stderr)
            raise SystemExit(code)
        report: dict[str, Any] = json.loads(output.read_text())
    if report["environment"]["interrupted"]:
        raise KeyboardInterrupt
    seconds = round(time.monotonic() - before)
    made = {"command": command, "seconds": seconds, "report": trimmed(report)}
    return made, code == 0


def trimmed(report: dict[str, Any]) -> dict[str, Any]:
    """Without times of single calls, whose quantiles the rows have, and without digits that are
    noise."""
    details = report["details"]
    rows = [
        {name: value for name, value in row.items() if name != "samples_us"}
        for row in details.get("rows", [])
    ]
    found = {**report, "details": {**details, **({"rows": rows} if rows else {})}}
    return {name: rounded(each) for name, each in found.items()}


def rounded(found: Any) -> Any:
    """The same with all numbers that are not whole cut to a few digits."""
    if isinstance(found, float):
        return float(f"{found:.{DIGITS}g}")
    if isinstance(found, dict):
        return {name: rounded(each) for name, each in found.items()}
    if isinstance(found, list):
        return [rounded(each) for each in found]
    return found
