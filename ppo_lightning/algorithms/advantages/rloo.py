"""RLOO: the baseline of a response is the mean score of the others to its prompt."""

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.groups import compare
from ppo_lightning.algorithms.outcome import row_scores, spread


@torch.no_grad()
def rloo(
    token_level_rewards: Float[Tensor, "B R"], response_mask: Shaped[Tensor, "B R"], group: Int64[Tensor, "B"]
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Give each row its score less the mean of the others in its group, which is `n / (n - 1) * (score - mean)`.

    A row without companions gets 0.

    Source: https://arxiv.org/abs/2402.14740.
    """
    groups = compare(row_scores(token_level_rewards, response_mask), group)
    correction = groups.count / (groups.count - 1).clamp(min=1)
    return spread(groups.centred() * correction[group], response_mask)
