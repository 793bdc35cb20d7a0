# SPDX-License-Identifier: Apache-2.0
"""Libraries that reach the memory of another process: a file for each."""
