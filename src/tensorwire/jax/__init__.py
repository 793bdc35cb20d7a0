# SPDX-License-Identifier: Apache-2.0
"""JAX's collectives between processes on CPUs, over groups of ranks.

JAX takes an MPI for them that it finds by an environment variable when it is imported. ``enable``
has it find one that is made of :mod:`tensorwire.collective`'s groups::

    import tensorwire.jax
    tensorwire.jax.enable()  # before JAX is imported

    import jax
    jax.distributed.initialize(...)

``tensorwire run -- python train.py`` does the same to a program as it is.
"""

from tensorwire.jax.library import Communicator, enable, environment, statistics

__all__ = ["Communicator", "enable", "environment", "statistics"]
