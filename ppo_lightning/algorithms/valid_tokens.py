"""Rows with their masked tokens taken out, for recursions over time that step from one valid token to the next."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor


@dataclass(frozen=True)
class ValidTokens:
    """Where the valid tokens of a batch are, and where they go when each row's are moved to its head.

    Attributes:
        kept: True at valid tokens (B, R).
        column: the column a token moves to (B, R): for a valid token its number among the row's valid tokens, for a
            masked one that of the last valid token before it, -1 before the first. None when the valid tokens of
            every row already lead it, as they do in a right-padded batch.
    """

    kept: Bool[Tensor, "B R"]
    column: Int64[Tensor, "B R"] | None

    def pack(self, values: Float[Tensor, "B R"]) -> Float[Tensor, "B R"]:
        """Move the values of valid tokens to the head of their rows and fill with 0; other values are not read."""
        valid = torch.where(self.kept, values, 0.0)
        return valid if self.column is None else _add_at(self.column, valid)

    def packed(self) -> Bool[Tensor, "B R"]:
        """Return where valid tokens are after the move: at the head of each row."""
        return self.kept if self.column is None else self.kept.sort(-1, descending=True).values

    def pack_rewards(self, rewards: Float[Tensor, "B R"]) -> Float[Tensor, "B R"]:
        """Do the same with rewards, and credit a reward on a masked token to the last valid token before it.

        Masked tokens (a tool's output, padding) are not steps of the policy, but a reward written there was earned by
        the steps before. Without any step before it there is nobody to credit: such a reward, and with it every reward
        of a row with no valid token, is dropped. A NaN under the mask is no reward.
        """
        if self.column is not None:
            return _credit(rewards, self.kept, self.column)
        valid = torch.where(self.kept, rewards, 0.0)
        if torch.equal(valid, rewards):
            return valid
        rows = (valid != rewards).any(-1)
        valid[rows] = _credit(rewards[rows], self.kept[rows], _columns(self.kept[rows]))
        return valid

    def unpack(self, values: Float[Tensor, "B R"]) -> Float[Tensor, "B R"]:
        """Move packed values back to their tokens; 0 under the mask. Packed values must be 0 after the last token."""
        if self.column is None:
            return values
        return torch.where(self.kept, values.gather(1, self.column.clamp(min=0)), 0.0)


def find_valid(response_mask: Shaped[Tensor, "B R"]) -> ValidTokens:
    """Locate the valid tokens of a batch."""
    kept = response_mask.bool()
    scattered = (kept[:, 1:] > kept[:, :-1]).any()
    return ValidTokens(kept, _columns(kept) if scattered else None)


def reverse_scan(values: Float[Tensor, "B R"], decay: float) -> Float[Tensor, "B R"]:
    """Return y with `y[:, t] = values[:, t] + decay * y[:, t + 1]`.

    Without decay it is a cumulative sum from the right; else one step per column over all rows, on a transposed copy
    where each column of the batch is contiguous.
    """
    if decay == 1:
        return values.flip(-1).cumsum_(-1).flip(-1)
    steps = values.t().clone(memory_format=torch.contiguous_format)
    columns = steps.unbind(0)
    for column, after in zip(columns[-2::-1], columns[:0:-1], strict=True):
        column.add_(after, alpha=decay)
    return steps.t().contiguous()


def _columns(kept: Bool[Tensor, "B R"]) -> Int64[Tensor, "B R"]:
    return kept.cumsum(-1) - 1


def _credit(
    rewards: Float[Tensor, "B R"], kept: Bool[Tensor, "B R"], column: Int64[Tensor, "B R"]
) -> Float[Tensor, "B R"]:
    has_token = (kept | ~rewards.isnan()) & (column >= 0)
    return _add_at(column, torch.where(has_token, rewards, 0.0))


def _add_at(column: Int64[Tensor, "B R"], values: Float[Tensor, "B R"]) -> Float[Tensor, "B R"]:
    return torch.zeros_like(values).scatter_add_(1, column.clamp(min=0), values)
