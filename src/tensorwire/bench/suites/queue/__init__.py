# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench queue``: items that several processes put and one gets."""
