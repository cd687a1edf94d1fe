"""REINFORCE++: discounted returns, whitened over the batch; neither critic nor groups."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.masked import Reduce, identity, keep_bits, whiten_cleared
from ppo_lightning.algorithms.valid_tokens import find_valid


@torch.no_grad()
def reinforce_plus_plus(
    token_level_rewards: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
    gamma: float,
    all_reduce: Reduce = identity,
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Return the whitened discounted reward-to-go, and the reward-to-go itself as returns.

    A step leads from one valid token to the next; a reward on a masked token belongs to the last valid token before it,
    and the reward of a row with no valid token is dropped.

    Source: https://arxiv.org/abs/2501.03262.
    """
    tokens = find_valid(keep_bits(response_mask))
    returns = tokens.unpack(tokens.rewards_to_go(token_level_rewards, gamma))
    return whiten_cleared(returns, tokens.bits, all_reduce), returns
