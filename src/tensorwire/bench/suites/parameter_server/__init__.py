# SPDX-License-Identifier: Apache-2.0
"""``make demo-rpc``: a parameter server and its clients, over grpcio and over tensorwire."""
