"""One number that depends on every weight, to compare an engine's weights with the policy's.

An engine that packs its weights for a kernel can still give columns of them exactly, by multiplying with unit vectors;
`column_checksum` reads the same few columns of the policy, others at each version.
"""

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ppo_lightning.parallel.sharding import whole

COLUMNS = 8
"""Columns read of each matrix."""

HEAD = "lm_head.weight"
"""Name under which the output head is counted, also when it is tied to the embeddings."""


def checksum(weights: Iterable[tuple[str, Tensor]]) -> float:
    """Return the sum over tensors of their float64 sum weighted by a hash of the name.

    Equal weights under equal names give equal numbers on one device kind; a tensor that was left behind changes it.
    """
    total = torch.zeros((), dtype=torch.float64)
    for name, tensor in weights:
        total += _hash(name) * tensor.detach().sum(dtype=torch.float64).cpu()
    return float(total)


def column_checksum(policy: nn.Module, dtype: torch.dtype, version: int, names: Iterable[str]) -> float:
    """Return the checksum over the columns that `version` picks of each named weight, in the engine's type.

    The output head is read apart from the embeddings even where they are one tensor: an engine may keep two.

    Raises:
        KeyError: the policy has no weight of that name.
    """
    weights = dict(policy.named_parameters())
    weights[HEAD] = policy.get_output_embeddings().weight
    parts = ((name, pick(whole(weights[name].detach()), version).to(dtype)) for name in sorted(names))
    return checksum(parts)


def checksum_of_policy(policy: nn.Module, dtype: torch.dtype, version: int, names: list[str]) -> float | None:
    """Return the checksum that an engine must have which can show the named weights; None if it shows none of them."""
    mine = {name for name, _ in policy.named_parameters()}
    hidden = mine - set(names)
    if hidden:
        warnings.warn(
            f"rollout.check_weights: {len(hidden)} of {len(mine)} weights, such as {min(hidden)}, cannot be read back "
            "from vLLM: watch training/rollout_probs_diff_mean",
            stacklevel=2,
        )
    if hidden == mine:
        return None
    return column_checksum(policy, dtype, version, [name for name in names if name in mine or name == HEAD])


def pick(weight: Tensor, version: int) -> Tensor:
    """Return the columns of a matrix that `version` picks; other weights whole."""
    return weight[:, columns(weight.shape[1], version).to(weight.device)] if weight.ndim == 2 else weight


def columns(width: int, version: int) -> Tensor:
    """Return the numbers of the columns to read, spread over the width and shifted by the version."""
    count = min(COLUMNS, width)
    return (torch.arange(count) * (width // count) + version) % width


def agree(found: float, expected: float) -> bool:
    """Tell whether two checksums of equal weights, summed in whatever order, can be these."""
    return abs(found - expected) <= 1e-10 * max(1e3, abs(expected))


def _hash(name: str) -> float:
    return 1.0 + (sum(name.encode()) % 97) / 97.0
