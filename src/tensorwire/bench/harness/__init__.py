# SPDX-License-Identifier: Apache-2.0
"""What all suites share: processes, rounds, rows, and the report."""
