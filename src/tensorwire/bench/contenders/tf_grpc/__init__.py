# SPDX-License-Identifier: Apache-2.0
"""Contenders of the TF-gRPC-Bench suite."""
