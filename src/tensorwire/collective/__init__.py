# SPDX-License-Identifier: Apache-2.0
"""Collectives: all-reduce and its relatives over NumPy arrays, between processes of one host."""

from tensorwire.collective.errors import (
    DisagreementError,
    ExcludedError,
    GroupError,
    GroupTimeoutError,
    RankLostError,
)
from tensorwire.collective.group import Group, Op, join
from tensorwire.collective.regroup import newcomers, regroup, rejoin
from tensorwire.collective.stores import FileStore, PrefixStore, RpcStore, Store, store_service
from tensorwire.collective.work import Work

__all__ = [
    "DisagreementError",
    "ExcludedError",
    "FileStore",
    "Group",
    "GroupError",
    "GroupTimeoutError",
    "Op",
    "PrefixStore",
    "RankLostError",
    "RpcStore",
    "Store",
    "Work",
    "join",
    "newcomers",
    "regroup",
    "rejoin",
    "store_service",
]
