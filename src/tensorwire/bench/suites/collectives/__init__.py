# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench collectives``: operations of groups of ranks, each on one host."""
