"""From rewards of tokens to one score per row, and from one advantage per row back to its tokens."""

import torch
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor

from ppo_lightning.algorithms.masked import (
    Reduce,
    exact_sums,
    identity,
    keep_bits,
    kept_or_zero,
    row_blocks,
    token_counts,
    whiten_rows,
)


def row_scores(rewards: Float[Tensor, "B R"], response_mask: Shaped[Tensor, "B R"]) -> Float64[Tensor, "B"]:
    """Sum each row's rewards.

    All positions count, also those under the mask: a reward that was written on a masked token (the last column of a
    row with no valid token, a tool's output) stays in the row's score. Only a NaN under the mask is left out.

    The sum is exact: float32 rewards are added in float64, so rows that hold the same rewards in another order have
    equal scores.
    """
    scores = exact_sums(rewards)
    if not scores.isnan().any():
        return scores
    return torch.where(rewards.isnan() & ~response_mask.bool(), 0.0, rewards.double()).sum(-1)


def spread(
    advantages: Float64[Tensor, "B"], response_mask: Shaped[Tensor, "B R"]
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Give every valid token its row's advantage, and return that as advantages and as returns: one tensor, twice."""
    given = advantages.float().unsqueeze(-1)
    rows = given.squeeze(-1).nonzero().squeeze(-1)
    if 2 * len(rows) < len(given):  # of most rows, which get nothing, the mask need not be read
        tokens = torch.zeros(response_mask.shape, device=given.device)
        tokens.index_copy_(0, rows, kept_or_zero(given[rows], keep_bits(response_mask[rows])))
        return tokens, tokens
    tokens = torch.empty(response_mask.shape, device=given.device)
    bits = given.view(torch.int32)
    for block in row_blocks(tokens):
        # As `keep_bits` and `kept_or_zero`, with the result as the only memory that is written.
        tokens[block].view(torch.int32).copy_(response_mask[block]).neg_().bitwise_and_(bits[block])
    return tokens, tokens


def whiten_compared(
    advantages: Float64[Tensor, "B"],
    response_mask: Shaped[Tensor, "B R"],
    lone: Bool[Tensor, "B"],
    all_reduce: Reduce = identity,
) -> Float64[Tensor, "B"]:
    """Whiten advantages of rows over the valid tokens of the batch; rows without companions do not count and get 0."""
    tokens = torch.where(lone, 0.0, token_counts(response_mask))
    return torch.where(lone, 0.0, whiten_rows(advantages, tokens, all_reduce))
