# SPDX-License-Identifier: Apache-2.0
"""How long it takes until receivers hold a trainer's new weights."""
