"""Optimal token baseline: one baseline per group and token, returns weighted by the variance of the path so far."""

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.groups import group_largest, group_total
from ppo_lightning.algorithms.masked import clear_masked, token_counts
from ppo_lightning.algorithms.running_sum import running_sum
from ppo_lightning.algorithms.valid_tokens import ValidTokens, find_valid, reverse_scan

WEIGHT_EPSILON = 1e-8


def path_variance(
    old_log_probs: Float[Tensor, "B R"],
    sum_pi_squared: Float[Tensor, "B R"],
    tokens: ValidTokens,
    rollout_is_weights: Float[Tensor, "B R"] | None,
) -> Float[Tensor, "B R"]:
    """Accumulate the variance of the path to each valid token; 0 under the mask.

    `W_t = sum over valid j <= t of rho_j^2 * (1 - 2 * pi_j + sum over the vocabulary of pi^2)`. The summand is the
    squared norm of the softmax score of token j; rho are the rollout's importance weights, if any.
    """
    chosen = old_log_probs.exp()
    energy = torch.sub(sum_pi_squared, chosen, alpha=2, out=chosen).add_(1)
    if rollout_is_weights is not None:
        energy.mul_(rollout_is_weights.square())
    if not tokens.leading:  # else what is masked comes last and cannot add to a valid token
        clear_masked(energy, tokens.kept)
    return clear_masked(running_sum(energy, into=energy), tokens.kept)


def less_baseline(
    returns: Float[Tensor, "B R"],
    weights: Float[Tensor, "B R"],
    kept: Bool[Tensor, "B R"],
    first: Float[Tensor, "B"],
    group: Int64[Tensor, "B"],
    handle_zero_tail: bool,
) -> Float[Tensor, "B R"]:
    """Subtract from each return `sum(G * W) / (sum(W) + 1e-8)` over the valid tokens of its group in its column.

    Returns and weights are 0 where `kept` is False; `first` is each row's return at its first valid token.
    """
    number = int(group.max()) + 1 if len(group) else 0
    lengths = token_counts(kept)
    silent = ~_has_signal(returns, kept, first, lengths > 0, group, number)
    total = group_total(number, group, returns * weights)
    baseline = total.div_(group_total(number, group, weights).add_(WEIGHT_EPSILON)).index_select(0, group)
    if handle_zero_tail:
        rows, ends = _tails(lengths, group, number)
        column = torch.arange(returns.shape[1], device=returns.device)
        baseline[rows] = clear_masked(baseline[rows], column < ends.unsqueeze(-1))
    advantages = clear_masked(torch.sub(returns, baseline, out=baseline), kept)
    advantages[silent] = 0.0
    return advantages


def _tails(
    lengths: Float64[Tensor, "B"], group: Int64[Tensor, "B"], number: int
) -> tuple[Int64[Tensor, "K"], Float64[Tensor, "K"]]:
    """Return the rows that are longer than all others of their group, and the column from which each is alone."""
    longest = lengths == group_largest(number, group, lengths)[group]
    alone = longest & (group_total(number, group, longest.double()) == 1)[group]
    second = group_largest(number, group, torch.where(longest, -torch.inf, lengths))
    return alone.nonzero().squeeze(1), second[group][alone]


def _has_signal(
    returns: Float[Tensor, "B R"],
    kept: Bool[Tensor, "B R"],
    first: Float[Tensor, "B"],
    alive: Bool[Tensor, "B"],
    group: Int64[Tensor, "B"],
    number: int,
) -> Bool[Tensor, "B"]:
    """Mark rows whose group has at least two rows with tokens, and not one and the same return at all of them.

    The returns after the first are looked at only where the first ones of a group's rows agree.
    """
    largest = group_largest(number, group, torch.where(alive, first, -torch.inf))
    agree = alive & (largest == -group_largest(number, group, torch.where(alive, -first, -torch.inf)))[group]
    changes = torch.zeros_like(first)
    moved = (returns[agree] != first[agree].unsqueeze(-1)) & kept[agree]
    changes[agree] = moved.any(-1).to(first.dtype)
    differs = ~agree | (group_total(number, group, changes) > 0)[group]
    return differs & (group_total(number, group, alive.double()) > 1)[group]


@torch.no_grad()
def optimal_token_baseline(
    token_level_rewards: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
    group: Int64[Tensor, "B"],
    old_log_probs: Float[Tensor, "B R"],
    sum_pi_squared: Float[Tensor, "B R"],
    rollout_is_weights: Float[Tensor, "B R"] | None = None,
    handle_zero_tail: bool = True,
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Return the reward-to-go less the group's optimal baseline at the same column, and the reward-to-go as returns.

    `B_t = sum(G_t * W_t) / sum(W_t)` over the group's rows that have a valid token in column t, with the path
    variance W (`path_variance`). The last tokens of a row that is longer than all others of its group have no other
    row to be compared with: with `handle_zero_tail` their baseline is 0, else it is their own return. A group whose
    returns are all the same, or with only one row that has tokens, gets 0 throughout.

    A reward on a masked token belongs to the last valid token before it.

    Args:
        token_level_rewards: rewards.
        response_mask: valid tokens.
        group: group ids.
        old_log_probs: log-probabilities of the sampled tokens.
        sum_pi_squared: sum over the vocabulary of squared probabilities at each token.
        rollout_is_weights: importance weights of the rollout, when they are corrected for.
        handle_zero_tail: see above.

    Source: the variance-optimal baseline of https://arxiv.org/abs/1301.2315, taken per token.
    """
    tokens = find_valid(response_mask)
    packed = reverse_scan(tokens.pack_rewards(token_level_rewards), 1.0)
    returns, first = tokens.unpack(packed), packed[:, :1].sum(-1)
    weights = path_variance(old_log_probs, sum_pi_squared, tokens, rollout_is_weights)
    advantages = less_baseline(returns, weights, tokens.kept, first, group, handle_zero_tail)
    return advantages.float(), returns.float()
