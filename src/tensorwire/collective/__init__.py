# SPDX-License-Identifier: Apache-2.0
"""Collectives: all-reduce and its relatives on arrays of NumPy, PyTorch, TensorFlow and JAX, and on
trees of them, between processes of one host or of many."""

from tensorwire.collective.calls import Op
from tensorwire.collective.errors import (
    DisagreementError,
    ExcludedError,
    FinishedError,
    GroupError,
    GroupTimeoutError,
    RankLostError,
)
from tensorwire.collective.group import Group, join
from tensorwire.collective.regroup import finish, newcomers, regroup, rejoin
from tensorwire.collective.stores import FileStore, PrefixStore, RpcStore, Store, store_service
from tensorwire.collective.work import Work

__all__ = [
    "DisagreementError",
    "ExcludedError",
    "FileStore",
    "FinishedError",
    "Group",
    "GroupError",
    "GroupTimeoutError",
    "Op",
    "PrefixStore",
    "RankLostError",
    "RpcStore",
    "Store",
    "Work",
    "finish",
    "join",
    "newcomers",
    "regroup",
    "rejoin",
    "store_service",
]
