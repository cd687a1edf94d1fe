"""Optimal token baseline for several turns: tool tokens between the turns do not shift the comparison."""

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.advantages.optimal_token_baseline import less_baseline, path_variance
from ppo_lightning.algorithms.valid_tokens import find_valid, reverse_scan


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
    tokens = find_valid(response_mask)
    returns = reverse_scan(tokens.pack_rewards(token_level_rewards), 1.0)
    weights = tokens.pack(path_variance(old_log_probs, sum_pi_squared, tokens, rollout_is_weights))
    first = returns[:, :1].sum(-1)
    advantages = less_baseline(returns, weights, tokens.packed(), first, group, handle_zero_tail)
    return tokens.unpack(advantages).float(), tokens.unpack(returns).float()
