"""GPG: group-centred scores, scaled up by the share of rows that score at all."""

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.groups import compare
from ppo_lightning.algorithms.masked import Reduce, identity
from ppo_lightning.algorithms.outcome import row_scores, spread


@torch.no_grad()
def gpg(
    token_level_rewards: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
    group: Int64[Tensor, "B"],
    f_norm: float = 1.0,
    all_reduce: Reduce = identity,
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Give each row `alpha * (score - group mean) / f_norm`, alpha = rows / rows with a non-zero score.

    Rows are counted over all ranks. Equal scores, and a row without companions, give 0.

    Source: https://arxiv.org/abs/2504.02546.
    """
    scores = row_scores(token_level_rewards, response_mask)
    counts = torch.stack([torch.ones_like(scores).sum(), (scores != 0).double().sum()])
    rows, scoring = all_reduce(counts)
    alpha = rows / scoring.clamp(min=1)
    return spread(alpha * compare(scores, group).centred() / f_norm, response_mask)
