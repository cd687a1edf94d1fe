"""GDPO: each part of a reward is compared within its group before the parts are added."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.advantages.grpo import relative_scores
from ppo_lightning.algorithms.groups import compare
from ppo_lightning.algorithms.masked import Reduce, identity
from ppo_lightning.algorithms.outcome import spread, whiten_compared
from ppo_lightning.errors import ConfigError, DataError


def stack_parts(columns: Mapping[str, np.ndarray], keys: Sequence[str]) -> Float64[Tensor, "B K"]:
    """Collect the columns of rewards that `algorithm.adv_options.gdpo_reward_keys` names.

    Raises:
        ConfigError: no key is named, or the rewards have no such column.
        DataError: a row lacks a value.
    """
    missing = [key for key in keys if key not in columns]
    if missing or not keys:
        raise ConfigError(
            "algorithm.adv_options.gdpo_reward_keys must name parts that the reward function returns "
            f"({', '.join(sorted(columns)) or 'it returns none'}) - got {list(keys)} - correct the names"
        )
    parts = torch.from_numpy(np.stack([np.asarray(columns[key], dtype=np.float64) for key in keys], axis=1))
    absent = parts.isnan().nonzero()
    if len(absent):
        row, part = absent[0].tolist()
        raise DataError(
            f"every row must have a number for {keys[part]!r} - row {row} has none - return it for each sample"
        )
    return parts


@torch.no_grad()
def gdpo(
    reward_parts: Float64[Tensor, "B K"],
    response_mask: Shaped[Tensor, "B R"],
    group: Int64[Tensor, "B"],
    norm_adv_by_std_in_grpo: bool,
    gdpo_reward_weights: Sequence[float] | None = None,
    all_reduce: Reduce = identity,
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Add the group-relative parts of each row, weighted, and whiten the sum over the valid tokens of the batch.

    The parts are the raw ones from the reward function: a KL penalty in the reward does not enter. A row without
    companions gets 0 and does not count in the whitening; a group with equal parts gets 0 before the whitening, which
    then places it relative to the batch.

    Args:
        reward_parts: one column per part.
        response_mask: valid tokens.
        group: group ids.
        norm_adv_by_std_in_grpo: divide each part by its group's standard deviation.
        gdpo_reward_weights: one per part; None: all 1.
        all_reduce: sum over ranks.

    Raises:
        ConfigError: the number of weights differs from the number of parts.

    Source: https://arxiv.org/abs/2601.05242.
    """
    weights = [1.0] * reward_parts.shape[1] if gdpo_reward_weights is None else list(gdpo_reward_weights)
    if len(weights) != reward_parts.shape[1]:
        raise ConfigError(
            "algorithm.adv_options.gdpo_reward_weights must have one weight per reward key - "
            f"got {len(weights)} for {reward_parts.shape[1]} keys - add or remove some"
        )
    parts = reward_parts.double().unbind(1)
    relative = [relative_scores(part, group, norm_adv_by_std_in_grpo) for part in parts]
    total = sum((weight * part for weight, part in zip(weights, relative, strict=True)), torch.zeros_like(parts[0]))
    return spread(whiten_compared(total, response_mask, compare(total, group).lone(), all_reduce), response_mask)
