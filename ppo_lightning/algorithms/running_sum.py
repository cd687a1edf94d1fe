"""Cumulative sums along the last dimension, also where only deterministic kernels are allowed."""

import torch
from jaxtyping import Float
from torch import Tensor


def running_sum(values: Float[Tensor, "*rows N"], into: Tensor | None = None) -> Float[Tensor, "*rows N"]:
    """Return the sums of the entries up to each one, written into a tensor (`values` itself, too) if one is given.

    CUDA has no deterministic kernel for numbers that are not whole; with `trainer.deterministic` the CPU adds them up.
    """
    if values.is_cuda and torch.are_deterministic_algorithms_enabled():
        summed = values.cpu().cumsum(-1).to(values.device)
        return summed if into is None else into.copy_(summed)
    return torch.cumsum(values, -1, out=into)
