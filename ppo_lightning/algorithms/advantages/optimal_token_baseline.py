"""Optimal token baseline: one baseline per group and token, returns weighted by the variance of the path so far."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.groups import group_largest, group_total
from ppo_lightning.algorithms.masked import clear_masked, keep_bits, row_blocks, token_counts
from ppo_lightning.algorithms.running_sum import running_sum
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
        clear_masked(energy, tokens.bits)
    return clear_masked(running_sum(energy, into=energy), tokens.bits)


@dataclass(frozen=True)
class Compared:
    """The rows of a batch as `less_baseline` compares them: column by column.

    Attributes:
        returns: reward-to-go (B, R), 0 under the mask.
        first: each row's return at its first valid token (B,).
        bits: `keep_bits` of the columns that count (B, R).
        total: returns times weights, added up over each group (G, R).
        weights: weights, added up over each group (G, R).
    """

    returns: Float[Tensor, "B R"]
    first: Float[Tensor, "B"]
    bits: Int[Tensor, "B R"]
    total: Float[Tensor, "G R"]
    weights: Float[Tensor, "G R"]


def line_up(
    token_level_rewards: Float[Tensor, "B R"],
    bits: Int[Tensor, "B R"],
    group: Int64[Tensor, "B"],
    old_log_probs: Float[Tensor, "B R"],
    sum_pi_squared: Float[Tensor, "B R"],
    rollout_is_weights: Float[Tensor, "B R"] | None,
    pack: bool,
) -> Compared:
    """Compute returns and path variances and add them up over groups, with `pack` by the number of the valid token."""
    returns = torch.empty_like(token_level_rewards)
    kept, first = torch.empty_like(bits) if pack else bits, returns.new_zeros(len(bits))
    total, weights = returns.new_zeros(2, int(group.max()) + 1 if len(group) else 0, bits.shape[1])
    for rows in row_blocks(bits):
        tokens = find_valid(bits[rows])
        packed = tokens.rewards_to_go(token_level_rewards[rows], 1.0)
        first[rows] = packed[:, :1].sum(-1)
        share = None if rollout_is_weights is None else rollout_is_weights[rows]
        weight = path_variance(old_log_probs[rows], sum_pi_squared[rows], tokens, share)
        if pack:
            weight, kept[rows] = tokens.pack(weight), tokens.packed()
        returns[rows] = packed if pack else tokens.unpack(packed)
        weights.index_add_(0, group[rows], weight)
        total.index_add_(0, group[rows], weight.mul_(returns[rows]))
    return Compared(returns, first, kept, total, weights)


def less_baseline(compared: Compared, group: Int64[Tensor, "B"], handle_zero_tail: bool) -> Float[Tensor, "B R"]:
    """Subtract from each return `sum(G * W) / (sum(W) + 1e-8)` over the valid tokens of its group in its column.

    Overwrites the total.
    """
    returns, number = compared.returns, len(compared.total)
    lengths = token_counts(compared.bits)
    silent = ~_has_signal(compared, lengths > 0, group)
    baselines = compared.total.div_(compared.weights + WEIGHT_EPSILON)
    ends = _tails(lengths, group, number) if handle_zero_tail else torch.full_like(lengths, torch.inf)
    column = torch.arange(returns.shape[1], device=returns.device)
    advantages = torch.empty_like(returns)
    for rows in row_blocks(returns):
        baseline = baselines.index_select(0, group[rows])
        alone = ends[rows].isfinite().nonzero().squeeze(1)
        shared = column < ends[rows][alone].unsqueeze(-1)
        baseline[alone] = torch.where(shared, baseline[alone], 0.0)
        clear_masked(torch.sub(returns[rows], baseline, out=advantages[rows]), compared.bits[rows])
    return advantages.index_fill_(0, silent.nonzero().squeeze(1), 0.0)


def _tails(lengths: Float64[Tensor, "B"], group: Int64[Tensor, "B"], number: int) -> Float64[Tensor, "B"]:
    """Return the column from which a row is alone that is longer than all others of its group; inf for other rows."""
    longest = lengths == group_largest(number, group, lengths)[group]
    alone = longest & (group_total(number, group, longest.double()) == 1)[group]
    second = group_largest(number, group, torch.where(longest, -torch.inf, lengths))[group].clamp(min=0)
    return torch.where(alone, second, torch.inf)


def _has_signal(compared: Compared, alive: Bool[Tensor, "B"], group: Int64[Tensor, "B"]) -> Bool[Tensor, "B"]:
    """Mark rows whose group has at least two rows with tokens, and not one and the same return at all of them.

    The returns after the first are looked at only where the first ones of a group's rows agree.
    """
    first, number = compared.first, len(compared.total)
    largest = group_largest(number, group, torch.where(alive, first, -torch.inf))
    agree = alive & (largest == -group_largest(number, group, torch.where(alive, -first, -torch.inf)))[group]
    changes = torch.zeros_like(first)
    moved = (compared.returns[agree] != first[agree].unsqueeze(-1)) & compared.bits[agree].bool()
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
    tensors = (token_level_rewards, keep_bits(response_mask), group, old_log_probs, sum_pi_squared, rollout_is_weights)
    compared = line_up(*tensors, pack=False)
    return less_baseline(compared, group, handle_zero_tail), compared.returns
