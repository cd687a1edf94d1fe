"""OPO: the baseline of a group is its mean score weighted by length, which has the least variance."""

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.groups import compare, group_total
from ppo_lightning.algorithms.masked import token_counts
from ppo_lightning.algorithms.outcome import row_scores, spread


@torch.no_grad()
def opo(
    token_level_rewards: Float[Tensor, "B R"], response_mask: Shaped[Tensor, "B R"], group: Int64[Tensor, "B"]
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Give each row its score less `sum(L_i * score_i) / sum(L_i)` over its group, L_i being valid tokens.

    Equal scores, and a row without companions, give 0. A group without any token has no baseline and nobody to tell.

    Source: https://arxiv.org/abs/2505.23585.
    """
    scores = row_scores(token_level_rewards, response_mask)
    groups = compare(scores, group)
    number = len(groups.count)
    lengths = token_counts(response_mask)
    total = group_total(number, group, lengths).clamp(min=1)
    baseline = group_total(number, group, lengths * scores) / total
    return spread(torch.where(groups.signal[group], scores - baseline[group], 0.0), response_mask)
