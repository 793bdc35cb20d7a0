# SPDX-License-Identifier: Apache-2.0
"""The options of ``tensorwire train``: what goes together, and how the command line says it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tensorwire.bench.suites.train import command
from tensorwire.bench.suites.train.options import OptionError, Options, boolean, hosts
from tensorwire.cli import app

CLUSTER: dict[str, Any] = {
    "ps_hosts": ["a:1"],
    "worker_hosts": ["b:1", "c:1"],
    "job_name": "worker",
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        CLUSTER,
        {**CLUSTER, "job_name": "ps"},
        {**CLUSTER, "task_index": 1, "variable_update": "distributed_replicated"},
        {**CLUSTER, "ps_hosts": [], "variable_update": "collective_all_reduce"},
        {**CLUSTER, "ps_hosts": [], "variable_update": "horovod"},
        {"variable_update": "independent", "model": "lstm"},
        {"data_name": "digits", "num_warmup_batches": 0},
    ],
)
def test_what_goes_together(options: dict[str, Any]) -> None:
    assert Options(**options).check() == Options(**options)


@pytest.mark.parametrize(
    ("options", "option", "says"),
    [
        ({"model": "resnet51"}, "model", "Invalid model name 'resnet51'; there are .*resnet50"),
        ({"data_name": "imagenot"}, "data_name", "no data set is called 'imagenot'"),
        ({"data_dir": Path("/nowhere")}, "data_dir", "there is no folder /nowhere"),
        ({"num_gpus": 2}, "num_gpus", "2 is not supported: each process trains on one device"),
        ({"num_batches": 0}, "num_batches", "0 is less than 1"),
        ({"batch_size": -1}, "batch_size", "-1 is less than 0"),
        ({"optimizer": "adam"}, "optimizer", "'adam' is none of sgd, momentum, rmsprop"),
        ({"variable_update": "replicate"}, "variable_update", "is none of"),
        (
            {"variable_update": "replicated"},
            "variable_update",
            "use distributed_replicated or",
        ),
        (
            {"server_protocol": "grpc+verbs"},
            "server_protocol",
            "is none of grpc, grpc\\+",
        ),
        ({"data_format": "NCHW"}, "data_format", "'NCHW' is not supported: use NHWC"),
        ({"device": "tpu"}, "device", "'tpu' is none of"),
        ({"variable_update": "distributed_replicated"}, "variable_update", "give job_name"),
        ({"variable_update": "collective_all_reduce"}, "variable_update", "give job_name"),
        ({"ps_hosts": ["a:1"]}, "job_name", "ps or a worker"),
        ({**CLUSTER, "job_name": "chief"}, "job_name", "neither ps nor worker"),
        ({**CLUSTER, "variable_update": "independent"}, "variable_update", "no cluster"),
        ({**CLUSTER, "worker_hosts": []}, "worker_hosts", "a cluster needs them"),
        ({**CLUSTER, "ps_hosts": []}, "ps_hosts", "at least one parameter server"),
        ({**CLUSTER, "task_index": 2}, "task_index", "worker_hosts has 2"),
        ({**CLUSTER, "job_name": "ps", "task_index": 1}, "task_index", "ps_hosts has 1"),
        ({**CLUSTER, "ps_hosts": ["b:1"]}, "ps_hosts", "b:1 is in worker_hosts"),
        ({**CLUSTER, "variable_update": "collective_all_reduce"}, "ps_hosts", "no parameter serv"),
        ({"variable_update": "horovod"}, "variable_update", "give job_name"),
        ({**CLUSTER, "variable_update": "horovod"}, "ps_hosts", "no parameter servers"),
        (
            {
                **CLUSTER,
                "ps_hosts": [],
                "variable_update": "horovod",
                "server_protocol": "grpc+tensorwire",
            },
            "server_protocol",
            "horovod has none",
        ),
    ],
)
def test_what_does_not(options: dict[str, Any], option: str, says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        Options(**options).check()
    assert caught.value.option == option


def test_a_data_dir_that_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no data set that is known") as caught:
        Options(data_dir=tmp_path).check()
    assert caught.value.option == "data_dir"


def test_the_input_is_the_models_or_the_data_sets() -> None:
    assert Options(model="lenet").input_shape() == (28, 28, 3)
    assert Options(model="lenet").classes() == 1001
    assert Options(model="lenet", data_name="digits").input_shape() == (28, 28, 1)
    assert Options(model="lenet", data_name="digits").classes() == 10
    assert Options(model="lstm").input_shape() == (32, 1024, 1)
    assert Options(model="lstm", data_name="mnist").input_shape() == (28, 28, 1)


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:0", "a:65536", "a:x", "a:1,a:1", "a:٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        hosts(text)


def test_addresses() -> None:
    assert hosts("") == []
    assert hosts(" a:1, [::1]:2 ") == ["a:1", "[::1]:2"]


@given(st.text(max_size=8))
def test_a_boolean_is_one_of_a_few_words(text: str) -> None:
    word = text.strip().lower()
    if word in ("true", "t", "yes", "1", "false", "f", "no", "0"):
        assert boolean(text) == (word in ("true", "t", "yes", "1"))
    else:
        with pytest.raises(ValueError, match="neither true nor false"):
            boolean(text)


WORKER = ("--job_name=worker", "--ps_hosts=a:1", "--worker_hosts=b:1")


def seen_by_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Options:
    seen = []

    def see(options: Options, _sink: object) -> None:
        seen.append(options)

    monkeypatch.setattr(command, "one_process", see)
    result = CliRunner().invoke(app, ["train", *arguments])
    assert result.exit_code == 0, result.output
    return seen[0]


def test_the_guides_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = (
        "--model=resnet50 --batch_size=64 --num_gpu=1 --local_parameter_device=cpu "
        "--variable_update=parameter_server --job_name=worker --ps_hosts=h1:50000 "
        "--worker_hosts=h2:50001,h3:50002 --task_index=1 --server_protocol=grpc "
        "--cross_replica_sync=True"
    )
    seen = seen_by_command(monkeypatch, *line.split())
    assert (seen.model, seen.batch, seen.task_index, seen.workers) == ("resnet50", 64, 1, 2)
    assert (seen.ps_hosts, seen.cross_replica_sync) == (["h1:50000"], True)


def test_dashes_do_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = seen_by_command(monkeypatch, "--batch-size", "3", "--num_warmup-batches", "2")
    assert (seen.batch_size, seen.warmup) == (3, 2)


def test_replicated_on_one_device_is_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "--variable_update=replicated --num_gpus=1 --data_format=NHWC --model=lenet"
    assert seen_by_command(monkeypatch, *line.split()).variable_update == "independent"


def test_options_survive_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(
        **CLUSTER,
        model="lenet",
        cross_replica_sync=False,
        learning_rate=0.25,
        num_warmup_batches=0,
        weight_decay=0.0,
        output=Path("/tmp/there is none.json"),
        server_protocol="grpc+tensorwire",
    )
    assert seen_by_command(monkeypatch, *options.arguments()) == options
    assert Options().arguments() == []


def test_a_process_of_a_cluster_takes_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", "shm")
    found = []

    def look(_options: Options, _sink: object) -> None:
        found.append(os.environ["TENSORWIRE_TRANSPORT"])

    monkeypatch.setattr(command, "one_process", look)
    line = ["train", *WORKER, "--server_protocol=grpc+tensorwire", "--transport", "tcp"]
    assert CliRunner().invoke(app, line).exit_code == 0
    assert found == ["tcp"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "foo"], "--model"),
        (["--cross_replica_sync", "maybe"], "neither true nor false"),
        (["--local", "worker=2"], "needs a parameter server"),
        (["--local", "ps=1"], "at least one worker"),
        (["--local", "ps=1,worker=1", "--job_name", "ps"], "no job_name"),
        (["--local", "ps=1,worker=1", "--model", "foo"], "Invalid model name"),
        (["--compare", "--transport", "udp"], "'udp' is none of shm, verbs, tcp"),
        (["--compare", "--variable_update", "independent"], "ceiling already"),
        (["--num_gpus=4"], "start a worker for each device"),
        (["--data_format=NCHW"], "use NHWC"),
        (["--local", "ps=1,worker=2", "--variable_update=replicated"], "distributed_replicated"),
        (["--compare", "--variable_update=replicated"], "distributed_replicated"),
        (["--job_name=worker", "--variable_update=replicated"], "distributed_replicated"),
        (["--output", "/no/such/a.json"], "there is no folder /no/such: make it"),
        (["--local", "ps=1,worker=2", "--output", "/proc/a.json"], "cannot write to /proc/a.json"),
        (["--compare", "--output", "/proc"], "/proc is a folder: name a file in it"),
        (["--compare", "--plot", "/no/such/folder/a.png"], "there is no folder"),
        (["--plot", "a.png"], "is of --compare"),
        (["--local", "ps=1,worker=2", "--rounds", "3"], "is of --compare"),
        (["--transport", "tcp"], "a process on its own has no peers"),
        (["--local", "ps=1,worker=2", "--transport", "tcp"], "--server_protocol grpc+tensorwire"),
        ([*WORKER, "--transport", "tcp"], "is of tensorwire, not of grpc"),
        ([*WORKER, "--transport", "nonsense"], "'nonsense' is none of shm, verbs, tcp"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["train", *arguments], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert says in result.output
