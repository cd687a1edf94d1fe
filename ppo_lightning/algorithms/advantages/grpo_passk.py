"""GRPO for pass@k: only the best response of a group is reinforced, by its lead over the second best."""

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.advantages.grpo import STD_EPSILON
from ppo_lightning.algorithms.groups import compare, group_largest, group_total
from ppo_lightning.algorithms.outcome import row_scores, spread


@torch.no_grad()
def grpo_passk(
    token_level_rewards: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
    group: Int64[Tensor, "B"],
    norm_adv_by_std_in_grpo: bool,
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Give a group's best row `largest - second`, over the sample standard deviation if asked; every other row 0.

    Two best rows lead by nothing, so a tie gives 0 to all; so does a row without companions.

    Source: https://arxiv.org/abs/2503.19595.
    """
    scores = row_scores(token_level_rewards, response_mask)
    groups = compare(scores, group)
    number = len(groups.count)
    best = scores == groups.largest[group]
    winners = group_total(number, group, best.double())
    second = group_largest(number, group, torch.where(best, -torch.inf, scores))
    lead = torch.where(groups.signal & (winners == 1), groups.largest - second, 0.0)
    if norm_adv_by_std_in_grpo:
        lead = lead / (groups.std() + STD_EPSILON)
    return spread(torch.where(best, lead[group], 0.0), response_mask)
