# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench tensorflow``: TensorFlow's data plane, over stock gRPC and over tensorwire."""
