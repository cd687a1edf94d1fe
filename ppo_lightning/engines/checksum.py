"""One number that depends on every weight, to compare an engine's weights with the policy's."""

from collections.abc import Iterable

import torch
from torch import Tensor


def checksum(weights: Iterable[tuple[str, Tensor]]) -> float:
    """Return the sum over tensors of their float64 sum weighted by a hash of the name.

    Equal weights under equal names give equal numbers on one device kind; a tensor that was left behind changes it.
    """
    total = torch.zeros((), dtype=torch.float64)
    for name, tensor in weights:
        weight = 1.0 + (sum(name.encode()) % 97) / 97.0
        total += weight * tensor.detach().sum(dtype=torch.float64).cpu()
    return float(total)
