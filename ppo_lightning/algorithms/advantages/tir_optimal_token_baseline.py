"""Optimal token baseline for several turns: tool tokens between the turns do not shift the comparison."""

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.advantages.optimal_token_baseline import Steps, less_baseline, path_variance
from ppo_lightning.algorithms.row_blocks import by_blocks
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

    def steps(mask: Tensor, rewards: Tensor, log_probs: Tensor, squares: Tensor, weights: Tensor | None) -> Steps:
        tokens = find_valid(mask)
        returns = tokens.rewards_to_go(rewards, 1.0)
        variance = tokens.pack(path_variance(log_probs, squares, tokens, weights))
        return Steps(returns, variance, tokens.packed(), returns[:, :1].sum(-1))

    def unpack(mask: Tensor, *packed: Tensor) -> tuple[Tensor, ...]:
        tokens = find_valid(mask)
        return tuple(tokens.unpack(values) for values in packed)

    given = (response_mask, token_level_rewards, old_log_probs, sum_pi_squared, rollout_is_weights)
    packed = less_baseline(steps, given, group, handle_zero_tail)
    return packed if find_valid(response_mask).leading else by_blocks(unpack, response_mask, *packed)  # type: ignore[return-value]
