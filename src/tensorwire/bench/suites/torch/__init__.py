# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench torch``: training steps of PyTorch, whose ranks exchange gradients and weights
through each back end of ``torch.distributed`` that there is."""
