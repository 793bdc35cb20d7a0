# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the part of vLLM that the engine uses, with the names and the calls of vLLM 0.25:
what is abstract, who calls whom, and with what. vLLM itself is not needed by the tests."""
