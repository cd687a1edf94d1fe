"""ReMax: the baseline of a response is the score of the greedy one to the same prompt."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.masked import clear_masked, keep_bits
from ppo_lightning.algorithms.valid_tokens import find_valid


@torch.no_grad()
def remax(
    token_level_rewards: Float[Tensor, "B R"],
    reward_baselines: Float[Tensor, "B"],
    response_mask: Shaped[Tensor, "B R"],
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Return the reward-to-go less the baseline of the row, and the reward-to-go itself as returns.

    `reward_baselines` is the score of the greedy response. A reward on a masked token belongs to the last valid token
    before it; the reward of a row with no valid token is dropped.

    Source: https://arxiv.org/abs/2310.10505.
    """
    tokens = find_valid(keep_bits(response_mask))
    returns = tokens.unpack(tokens.rewards_to_go(token_level_rewards, 1.0))
    return clear_masked(returns - reward_baselines.float().unsqueeze(-1), tokens.bits), returns
