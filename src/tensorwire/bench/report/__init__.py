# SPDX-License-Identifier: Apache-2.0
"""Reports of runs that were kept as JSON: a page to read, and the comparison of two runs."""
