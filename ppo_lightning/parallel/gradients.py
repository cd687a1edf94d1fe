"""One flattened all-reduce of the gradient per optimizer step, instead of DistributedDataParallel's hooks."""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ppo_lightning.parallel.ranks import Ranks
from ppo_lightning.parallel.sharding import local

BUCKET_BYTES = 2**28
"""Gradients sent at once: what a copy of them may take besides the gradients."""


def average_gradients(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Replace every gradient by its mean over the ranks, in place; a missing one counts as zeros.

    Losses carry the factor dp_size (`LossCounts`), so the mean over ranks is the gradient of the exact global loss. A
    parameter that no rank has a gradient for keeps none: the optimizer leaves it alone, as on one rank.
    """
    if ranks.size == 1:
        return
    for bucket in buckets([p for p in parameters if p.requires_grad]):
        present = bucket[0].new_tensor([float(p.grad is not None) for p in bucket])
        parts = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in bucket]
        *means, counts = _mean(torch.cat([*parts, present]), ranks).split([*(p.numel() for p in bucket), len(bucket)])
        for parameter, mean, count in zip(bucket, means, counts.tolist(), strict=True):
            if count:
                parameter.grad = mean.view_as(parameter)


def total_norm(parameters: Iterable[nn.Parameter], ranks: Ranks) -> Float64[Tensor, ""]:
    """Return the norm of all gradients together, the same on every rank; squares are added up in float64."""
    norms = [
        torch.linalg.vector_norm(local(p.grad), dtype=torch.float64).square() for p in parameters if p.grad is not None
    ]
    total = torch.stack(norms).sum() if norms else torch.zeros((), dtype=torch.float64)
    return (ranks.sum(total) if ranks.sharded else total).sqrt()


def buckets(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield parameters of one type and device, in order, as many as fit into BUCKET_BYTES (at least one)."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        bytes_ = parameter.numel() * parameter.element_size()
        alike = not bucket or (parameter.dtype, parameter.device) == (bucket[0].dtype, bucket[0].device)
        if bucket and (size + bytes_ > BUCKET_BYTES or not alike):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += bytes_
    if bucket:
        yield bucket


def _mean(flat: Tensor, ranks: Ranks) -> Tensor:
    return ranks.sum(flat).div_(ranks.size)
