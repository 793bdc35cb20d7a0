# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench rpc``: calls and streams between two processes."""
