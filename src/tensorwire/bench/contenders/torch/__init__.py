# SPDX-License-Identifier: Apache-2.0
"""Contenders of ``tensorwire bench torch``."""
