# SPDX-License-Identifier: Apache-2.0
"""The figures that pages quote: the files they come from, and the tables that show them."""
