# SPDX-License-Identifier: Apache-2.0
"""Measurements: Tensorwire against stock grpcio, other libraries and the limits of the host."""
