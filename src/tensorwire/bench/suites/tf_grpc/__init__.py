# SPDX-License-Identifier: Apache-2.0
"""TF-gRPC-Bench, as R. Biswas et al. describe it (BPOE-9, 2018): payloads of the sizes that deep
learning has, between parameter servers and workers."""
