# SPDX-License-Identifier: Apache-2.0
"""Channels, and the calls that are made on them."""
