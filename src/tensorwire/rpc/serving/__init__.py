# SPDX-License-Identifier: Apache-2.0
"""Servers, and how they serve calls."""
