# SPDX-License-Identifier: Apache-2.0
"""The contenders of ``tensorwire bench weights``, a file for each."""
