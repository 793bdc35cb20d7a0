# SPDX-License-Identifier: Apache-2.0
"""Ranks, as launchers tell them."""

from __future__ import annotations

import json
import os

import pytest

from tensorwire.launch.place import Place, find, launched


def test_without_a_launcher() -> None:
    assert find({}) == Place(0, 1)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"},
            Place(1, 2, "node0:29501"),
        ),
        (
            {
                "HOROVOD_RANK": "2",
                "HOROVOD_SIZE": "3",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "node0",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": "7",
            },
            Place(2, 3, "node0:7"),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "PMIX_NAMESPACE": "a/1",
                "XDG_RUNTIME_DIR": "/run",
            },
            "a_1",
        ),
        (
            {
                "SLURM_PROCID": "1",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_JOB_ID": "9",
                "SLURM_STEP_ID": "0",
            },
            "9.0",
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, "."),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "."),
    ],
)
def test_launchers(environment: dict[str, str], wanted: Place | str) -> None:
    found = find(environment)
    if isinstance(wanted, str):
        assert (found.rank, found.size, found.address) == (1, 2, "")
        assert wanted in found.folder
    else:
        assert found == wanted


TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}


def test_ranks_of_one_host_can_meet_in_a_folder_too() -> None:
    near = find({**TORCHRUN, "LOCAL_WORLD_SIZE": "2", "XDG_RUNTIME_DIR": "/run"})
    assert (near.address, near.folder) == (
        "node0:29501",
        f"/run/tensorwire-job-{os.geteuid()}-none.29500",
    )
    assert find({**TORCHRUN, "LOCAL_WORLD_SIZE": "1"}).folder == ""
    assert find(TORCHRUN).folder == "", "torchrun does not tell, but an address"


SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_JOB_ID": "9",
    "SLURM_STEP_ID": "0",
}


@pytest.mark.parametrize(
    "environment",
    [
        SLURM,
        {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": "a",
        },
        {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"},
    ],
)
def test_ranks_of_several_hosts_meet_at_an_address(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="set MASTER_ADDR"):
        find(environment)
    found = find({**environment, "MASTER_ADDR": "node0", "MASTER_PORT": "700"})
    assert (found.address, found.folder, found.size) == ("node0:701", "", 4)


IN_A_STEP = {"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "a"},
            {"PMIX_NAMESPACE": "b"},
        ),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "2"}, {"MASTER_PORT": "29600"}),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "1"},
            {"MASTER_PORT": "2"},
        ),
    ],
)
def test_launchers_in_one_step_of_slurm_have_folders_of_their_own(
    one: dict[str, str], other: dict[str, str]
) -> None:
    first = find(IN_A_STEP | one)
    assert first.folder
    assert first.folder == find(IN_A_STEP | one).folder
    assert first.folder != find(IN_A_STEP | one | other).folder
    assert first.folder != find(IN_A_STEP | one | {"SLURM_STEP_ID": "1"}).folder


def test_mpich_in_a_step_of_slurm_is_known_by_its_proxy() -> None:
    ranks = IN_A_STEP | {"PMI_RANK": "1", "PMI_SIZE": "2"}
    folder = find(ranks).folder
    assert folder.endswith("-9.0"), "Slurm's own ranks need not have one parent"
    assert find(ranks | {"MPI_LOCALNRANKS": "2"}).folder.startswith(f"{folder}.{os.getppid()}.")


def test_a_launcher_that_left_its_step_knows_how_many_ranks_are_here() -> None:
    ranks = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "a",
    }
    with pytest.raises(ValueError, match="set MASTER_ADDR"):
        find(IN_A_STEP | ranks)


def test_a_cluster_is_no_launcher() -> None:
    assert launched({}) is None
    assert launched({"TF_CONFIG": "{}"}) is None
    assert launched(SLURM | {"MASTER_ADDR": "node0", "MASTER_PORT": "700"}) == Place(
        3, 4, "node0:701"
    )


def test_a_cluster_of_tensorwire_run() -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4"]}
    task = {"type": "worker", "index": 1}
    found = find({"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})})
    assert found == Place(2, 3, "a:1")


def test_a_launcher_that_outlives_ranks_serves_the_store() -> None:
    config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
    environment = {"TF_CONFIG": json.dumps(config), "TENSORWIRE_STORE": "c:3"}
    assert find(environment) == Place(1, 2, "c:3", served=True)
    environment["TENSORWIRE_REJOIN"] = "1"
    assert find(environment) == Place(1, 2, "c:3", served=True, again=True)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x' is no number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is no rank"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "65535"},
            "65536, is none",
        ),
        (
            {
                "TF_CONFIG": '{"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, '
                '"task": {"type": "chief", "index": 1}}'
            },
            "there is no chief 1",
        ),
        ({"TF_CONFIG": "{}"}, "TF_CONFIG"),
        ({"TF_CONFIG": '{"cluster": {}, "task": {"type": "ps", "index": 0}}'}, "TF_CONFIG"),
    ],
)
def test_what_is_wrong_is_named(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        find(environment)
