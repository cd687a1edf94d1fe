"""Optimal token baseline for several turns: tool tokens between the turns do not shift the comparison."""

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.advantages.optimal_token_baseline import less_baseline, line_up
from ppo_lightning.algorithms.masked import keep_bits, row_blocks
from ppo_lightning.algorithms.valid_tokens import find_valid


@torch.no_grad()
def tir_optimal_token_baseline(
    token_level_rewards: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
    group: Int64[Tensor, "B"],
    old_log_probs: Float[Tensor, "B R"],
    sum_pi_squared: Float[Tensor, "B R"],
    rollout_is_weights: Float[Tensor, "B R"] | None = None,
    handle_zero_tail: bool = True,
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Do what `optimal_token_baseline` does, comparing the k-th *valid* tokens of the rows instead of columns.

    Arguments, zero tail and groups without signal are as there.
    """
    bits = keep_bits(response_mask)
    tensors = (token_level_rewards, bits, group, old_log_probs, sum_pi_squared, rollout_is_weights)
    compared = line_up(*tensors, pack=True)
    advantages, returns = less_baseline(compared, group, handle_zero_tail), compared.returns
    for rows in row_blocks(bits):
        tokens = find_valid(bits[rows])
        if not tokens.leading:
            advantages[rows], returns[rows] = tokens.unpack(advantages[rows]), tokens.unpack(returns[rows])
    return advantages, returns
