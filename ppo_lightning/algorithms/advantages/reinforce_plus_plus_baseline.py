"""REINFORCE++ with the group's mean as baseline."""

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.groups import compare
from ppo_lightning.algorithms.masked import Reduce, identity
from ppo_lightning.algorithms.outcome import row_scores, spread, whiten_compared


@torch.no_grad()
def reinforce_plus_plus_baseline(
    token_level_rewards: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
    group: Int64[Tensor, "B"],
    all_reduce: Reduce = identity,
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Subtract the group's mean score from each row's, and whiten over the valid tokens of the batch.

    A row without companions gets 0 and does not count in the whitening. A group with equal scores gets 0 before the
    whitening, which then places it relative to the batch.

    Source: https://arxiv.org/abs/2501.03262.
    """
    groups = compare(row_scores(token_level_rewards, response_mask), group)
    return spread(whiten_compared(groups.centred(), response_mask, groups.lone(), all_reduce), response_mask)
