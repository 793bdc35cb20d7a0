# SPDX-License-Identifier: Apache-2.0
"""Memory of another process: reads, atomics, batches and signals."""
