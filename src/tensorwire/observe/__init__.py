# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a process, its links and its host.

``host``, ``audit`` and ``trace`` are what calls build on and record; ``metrics``, ``doctor``,
``rdma`` and ``loopback`` look at calls.
"""
