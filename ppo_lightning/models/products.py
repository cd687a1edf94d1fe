"""Matrix products without a gradient: on a CPU in float32 by oneDNN, which is faster there than torch's default."""

import torch
from torch import Tensor, nn


def onednn_takes(weight: Tensor) -> bool:
    """Tell whether oneDNN can multiply by this weight: an ordinary float32 tensor of the CPU."""
    plain = type(weight) in (nn.Parameter, Tensor) and weight.device.type == "cpu" and weight.dtype == torch.float32
    return plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return states @ weight.T + bias; the weight may be in oneDNN's own layout."""
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
