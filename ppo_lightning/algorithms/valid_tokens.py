"""Rows with their masked tokens taken out, for recursions over time that step from one valid token to the next."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from ppo_lightning.algorithms.masked import clear_masked, kept_or_zero, token_counts
from ppo_lightning.algorithms.running_sum import running_sum

# float32 ends at 2^128: values below 2^32 may be divided by a power of the decay that is 1 / LARGEST_POWER.
LARGEST_POWER = 2.0**96


@dataclass(frozen=True)
class ValidTokens:
    """Where the valid tokens of a batch are, and where they go when each row's are moved to its head.

    Attributes:
        bits: `keep_bits` of the mask, for float32.
        column: the column a token moves to (B, R): for a valid token its number among the row's valid tokens, for a
            masked one that of the last valid token before it, -1 before the first. None when the valid tokens of
            every row already lead it, as they do in a right-padded batch.
    """

    bits: Int[Tensor, "B R"]
    column: Int64[Tensor, "B R"] | None

    @property
    def leading(self) -> bool:
        """Whether the valid tokens of every row lead it."""
        return self.column is None

    def pack(self, values: Float[Tensor, "B R"]) -> Float[Tensor, "B R"]:
        """Move the values of valid tokens to the head of their rows and fill with 0; other values are not read."""
        valid = kept_or_zero(values, self.bits)
        return valid if self.column is None else _add_at(self.column, valid)

    def packed(self) -> Int[Tensor, "B R"]:
        """Return `bits` after the move: set at the head of each row."""
        return self.bits if self.column is None else self.bits.sort(-1).values

    def pack_rewards(self, rewards: Float[Tensor, "B R"]) -> Float[Tensor, "B R"]:
        """Do the same with rewards, and credit a reward on a masked token to the last valid token before it.

        Masked tokens (a tool's output, padding) are not steps of the policy, but a reward written there was earned by
        the steps before. Without any step before it there is nobody to credit: such a reward, and with it every reward
        of a row with no valid token, is dropped. A NaN under the mask is no reward.
        """
        if self.column is not None:
            return _credit(rewards, self.bits.bool(), self.column)
        valid = kept_or_zero(rewards, self.bits)
        # PyTorch looks through bytes thirteen times faster than through integers or booleans on a CPU.
        if not (valid.view(torch.int32) ^ rewards.view(torch.int32)).view(torch.uint8).any():
            return valid
        rows = (valid != rewards).any(-1)
        kept = self.bits[rows].bool()
        valid[rows] = _credit(rewards[rows], kept, _columns(kept))
        return valid

    def rewards_to_go(self, rewards: Float[Tensor, "B R"], gamma: float) -> Float[Tensor, "B R"]:
        """Return packed discounted sums of the rewards from each valid token on, credited as in `pack_rewards`."""
        if self.leading and rewards.numel():
            last = (token_counts(self.bits).long() - 1).clamp(min=0).unsqueeze(1)
            final = rewards.gather(1, last)
            written, at_end = (part.view(torch.int32).count_nonzero() for part in (rewards, final))
            if written == at_end:  # one reward a row, and at its end: every token has it to go, discounted
                if gamma == 1:
                    return kept_or_zero(final, self.bits)
                return clear_masked(_discounts(last.squeeze(1), rewards.shape[1], gamma).mul_(final), self.bits)
        return reverse_scan(self.pack_rewards(rewards), gamma)

    def unpack(self, values: Float[Tensor, "B R"]) -> Float[Tensor, "B R"]:
        """Move packed values back to their tokens; 0 under the mask. Packed values must be 0 after the last token."""
        if self.column is None:
            return values
        return kept_or_zero(values.gather(1, self.column.clamp(min=0)), self.bits)


def find_valid(bits: Int[Tensor, "B R"]) -> ValidTokens:
    """Locate the valid tokens of a batch, or of some of its rows, from the `keep_bits` of its mask."""
    kept = bits.bool()
    scattered = (kept[:, 1:] > kept[:, :-1]).view(torch.uint8).any()
    return ValidTokens(bits, _columns(kept) if scattered else None)


def reverse_scan(values: Float[Tensor, "B R"], decay: float) -> Float[Tensor, "B R"]:
    """Return y with `y[:, t] = values[:, t] + decay * y[:, t + 1]`.

    Counted from the right, `y_t = decay^t * sum over s <= t of decay^-s * values_s`: a cumulative sum, taken over as
    many columns at once as the powers allow.
    """
    steps = values.flip(-1)
    if decay == 1:
        return running_sum(steps, into=steps).flip(-1)
    if decay == 0:
        return values.clone()
    width = max(1, int(math.log2(LARGEST_POWER) / abs(math.log2(decay))))
    powers = torch.pow(decay, torch.arange(width, dtype=torch.float64, device=values.device)).to(values.dtype)
    for start in range(0, values.shape[1], width):
        block = steps[:, start : start + width]
        if start:
            block[:, 0].add_(steps[:, start - 1], alpha=decay)
        scale = powers[: block.shape[1]]
        running_sum(block.div_(scale), into=block).mul_(scale)
    return steps.flip(-1)


def _discounts(last: Int64[Tensor, "B"], width: int, gamma: float) -> Float[Tensor, "B R"]:
    """Return `gamma^(last - t)` for every column t up to a row's last, 1 behind it."""
    steps = torch.arange(width - 1, -width, -1, dtype=torch.float64, device=last.device).clamp_(min=0)
    # A row is a window of the powers of gamma, from the power of its first column on.
    return torch.pow(gamma, steps).float().unfold(0, width, 1).index_select(0, width - 1 - last)


def _columns(kept: Bool[Tensor, "B R"]) -> Int64[Tensor, "B R"]:
    return kept.cumsum(-1) - 1


def _credit(
    rewards: Float[Tensor, "B R"], kept: Bool[Tensor, "B R"], column: Int64[Tensor, "B R"]
) -> Float[Tensor, "B R"]:
    has_token = (kept | ~rewards.isnan()) & (column >= 0)
    return _add_at(column, torch.where(has_token, rewards, 0.0))


def _add_at(column: Int64[Tensor, "B R"], values: Float[Tensor, "B R"]) -> Float[Tensor, "B R"]:
    return torch.zeros_like(values).scatter_add_(1, column.clamp(min=0), values)
