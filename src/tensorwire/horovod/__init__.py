# SPDX-License-Identifier: Apache-2.0
"""Horovod's names on tensorwire's collectives: ``import tensorwire.horovod.torch as hvd``."""
