"""GRPO: a response is as good as it is better than the others to its prompt."""

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.groups import compare
from ppo_lightning.algorithms.outcome import row_scores, spread

STD_EPSILON = 1e-6


def relative_scores(scores: Float64[Tensor, "B"], group: Int64[Tensor, "B"], by_std: bool) -> Float64[Tensor, "B"]:
    """Return `(score - mean) / (std + 1e-6)` within each group, or without the division.

    The standard deviation is the sample's (ddof = 1). Equal scores, and the score of a row without companions, give
    exactly 0.
    """
    groups = compare(scores, group)
    centred = groups.centred()
    return centred / (groups.std()[group] + STD_EPSILON) if by_std else centred


@torch.no_grad()
def grpo(
    token_level_rewards: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
    group: Int64[Tensor, "B"],
    norm_adv_by_std_in_grpo: bool,
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Compare each row's score with its group; every valid token of the row gets the result.

    A row without companions gets 0: its raw score is no comparison. (With mean 0 and standard deviation 1 for a single
    sample, as the formula is often written, it would get its score.)

    Source: https://arxiv.org/abs/2402.03300; without the division: Dr. GRPO, https://arxiv.org/abs/2503.20783.
    """
    scores = row_scores(token_level_rewards, response_mask)
    return spread(relative_scores(scores, group, norm_adv_by_std_in_grpo), response_mask)
