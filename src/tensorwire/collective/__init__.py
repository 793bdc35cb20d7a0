# SPDX-License-Identifier: Apache-2.0
"""Collectives: all-reduce and its relatives over NumPy arrays, between processes of one host."""

from tensorwire.collective.errors import DisagreementError, GroupError, RankLostError
from tensorwire.collective.group import Group, Op, join
from tensorwire.collective.stores import FileStore, PrefixStore, RpcStore, Store, store_service
from tensorwire.collective.work import Work

__all__ = [
    "DisagreementError",
    "FileStore",
    "Group",
    "GroupError",
    "Op",
    "PrefixStore",
    "RankLostError",
    "RpcStore",
    "Store",
    "Work",
    "join",
    "store_service",
]
