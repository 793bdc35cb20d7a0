# SPDX-License-Identifier: Apache-2.0
"""The contenders that come with Tensorwire. Each is found by an entry point (``pyproject.toml``),
as those of other packages are, and imported only when it runs."""
