# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench channels``: one model trained over each channel that there is for its
gradients (A. A. Awan et al., CCGRID 2019, compare such for TensorFlow)."""
