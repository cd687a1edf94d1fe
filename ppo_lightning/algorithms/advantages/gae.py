"""Generalised advantage estimation: what PPO with a critic uses."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.masked import Reduce, identity, keep_bits, row_blocks, whiten_cleared
from ppo_lightning.algorithms.valid_tokens import find_valid, reverse_scan


@torch.no_grad()
def gae(
    token_level_rewards: Float[Tensor, "B R"],
    values: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
    gamma: float,
    lam: float,
    all_reduce: Reduce = identity,
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Estimate advantages by an exponential average of temporal differences, whitened over the batch.

    `delta_t = r_t + gamma * V_{t+1} - V_t`, `A_t = delta_t + gamma * lam * A_{t+1}`, where t + 1 is the next *valid*
    token and V is 0 after the last: critic values on padding or on a tool's tokens are never read. A reward on a
    masked token belongs to the last valid token before it; a row with no valid token has nothing to credit and its
    reward is dropped. Returns are `A + V` before whitening.

    Source: https://arxiv.org/abs/1506.02438, with the whitening that PPO on language models adds.
    """
    bits = keep_bits(response_mask)
    advantages, returns = torch.empty_like(values), torch.empty_like(values)
    for rows in row_blocks(bits):
        tokens = find_valid(bits[rows])
        baseline = tokens.pack(values[rows])
        delta = tokens.pack_rewards(token_level_rewards[rows]).sub_(baseline)
        delta[:, :-1].add_(baseline[:, 1:], alpha=gamma)
        packed = reverse_scan(delta, gamma * lam)
        advantages[rows] = tokens.unpack(packed)
        returns[rows] = tokens.unpack(baseline.add_(packed))
    return whiten_cleared(advantages, bits, all_reduce), returns
