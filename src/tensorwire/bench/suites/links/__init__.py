# SPDX-License-Identifier: Apache-2.0
"""``tensorwire tune links``: at which sizes the messages of a link change their protocol."""
