"""Optimal token baseline: one baseline per group and token, returns weighted by the variance of the path so far."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.groups import group_largest, group_total
from ppo_lightning.algorithms.masked import clear_masked, token_counts
from ppo_lightning.algorithms.row_blocks import by_blocks
from ppo_lightning.algorithms.valid_tokens import ValidTokens, find_valid

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
        tokens.clear(energy)
    return tokens.clear(energy.cumsum_(-1))


class Steps(NamedTuple):
    """What is compared, of some rows.

    Attributes:
        returns: reward-to-go (b, R).
        weights: path variance (b, R); both are 0 where `kept` is False.
        kept: where there are valid tokens (b, R).
        first: each row's return at its first valid token (b,).
    """

    returns: Float[Tensor, "b R"]
    weights: Float[Tensor, "b R"]
    kept: Bool[Tensor, "b R"]
    first: Float[Tensor, "b"]


def less_baseline(
    steps: Callable[..., Steps],
    tensors: Sequence[Tensor | None],
    group: Int64[Tensor, "B"],
    handle_zero_tail: bool,
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Return advantages and returns: an advantage is the return less what the group has in the same column.

    The baseline is `sum(G * W) / (sum(W) + 1e-8)` over the group's valid tokens in the column. All large tensors are
    gone through twice, in blocks: to add up the baselines, and to subtract them.

    Args:
        steps: what to compare, from some rows of the tensors.
        tensors: what `steps` takes; the first is (B, R).
        group: group ids.
        handle_zero_tail: see `optimal_token_baseline`.
    """
    mask = tensors[0]
    assert mask is not None, "the first tensor is the mask"
    number = int(group.max()) + 1 if len(group) else 0
    product, weight = torch.zeros(2, number, mask.shape[1], device=mask.device)

    def add_up(rows: Tensor, of_row: Tensor, *others: Tensor | None) -> tuple[Tensor, ...]:
        returns, weights, kept, first = steps(rows, *others)
        weight.index_add_(0, of_row, weights)
        product.index_add_(0, of_row, weights.mul_(returns))
        return returns, kept, first, token_counts(rows)

    returns, kept, first, lengths = by_blocks(add_up, mask, group, *tensors[1:])
    baseline = product.div_(weight.add_(WEIGHT_EPSILON))
    silent = ~_has_signal(returns, kept, first, lengths > 0, group, number)
    ends = _tails(lengths, group, number) if handle_zero_tail else torch.full_like(lengths, torch.inf)
    column = torch.arange(mask.shape[1], device=mask.device)

    def subtract(own: Tensor, valid: Tensor, of_row: Tensor, end: Tensor, quiet: Tensor) -> tuple[Tensor]:
        compared = baseline.index_select(0, of_row)
        alone = end.isfinite().nonzero().squeeze(1)
        compared[alone] = clear_masked(compared[alone], column < end[alone].unsqueeze(-1))
        advantages = clear_masked(torch.sub(own, compared, out=compared), valid)
        return (advantages.index_fill_(0, quiet.nonzero().squeeze(1), 0.0),)

    (advantages,) = by_blocks(subtract, returns, kept, group, ends, silent)
    return advantages, returns


def _tails(lengths: Float64[Tensor, "B"], group: Int64[Tensor, "B"], number: int) -> Float64[Tensor, "B"]:
    """Return the column from which each row is alone in its group: inf unless it is longer than all others."""
    longest = lengths == group_largest(number, group, lengths)[group]
    alone = longest & (group_total(number, group, longest.double()) == 1)[group]
    second = group_largest(number, group, torch.where(longest, -torch.inf, lengths))[group]
    return torch.where(alone, second.clamp(min=0), torch.inf)


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

    def steps(mask: Tensor, rewards: Tensor, log_probs: Tensor, squares: Tensor, weights: Tensor | None) -> Steps:
        tokens = find_valid(mask)
        packed = tokens.rewards_to_go(rewards, 1.0)
        variance = path_variance(log_probs, squares, tokens, weights)
        return Steps(tokens.unpack(packed), variance, tokens.kept, packed[:, :1].sum(-1))

    given = (response_mask, token_level_rewards, old_log_probs, sum_pi_squared, rollout_is_weights)
    return less_baseline(steps, given, group, handle_zero_tail)
