"""Compute each prompt once: rows of one prompt become one packed row `prompt, r1, ..., rm` with a tree-shaped mask.

Positions restart behind the prompt for every response, and a response sees the prompt and itself only, so hidden states
are those of the separate rows. With n rollouts per prompt this leaves out n - 1 copies of the prompt and all padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Packed:
    """Packed rows, T wide.

    Attributes:
        ids: (g, T) int64 token ids.
        positions: (g, T) int64 position of each token in its own sequence.
        mask: (g, 1, T, T) bool, what each token sees.
        before: (b, R) int64, flat index into g * T of the token before each response token; 0 where there is none.
    """

    ids: Int[Tensor, "g T"]
    positions: Int[Tensor, "g T"]
    mask: Bool[Tensor, "g 1 T T"]
    before: Int[Tensor, "b R"]


@dataclass(frozen=True)
class Sharing:
    """How rows of one prompt share its computation.

    Attributes:
        on: whether prompts are computed once.
        tokens_per_square: of the model, see `share_size`.
    """

    on: bool = False
    tokens_per_square: float = 1.0


def pack(
    input_ids: Int[Tensor, "b S"],
    attention_mask: Int[Tensor, "b S"],
    response_width: int,
    groups: Sequence[Sequence[int]],
) -> Packed:
    """Pack rows that share a prompt.

    Args:
        input_ids: left-padded prompts, then right-padded responses.
        attention_mask: 1 on tokens.
        response_width: R.
        groups: rows of each packed row; all rows of one have the same prompt.
    """
    ids, valid = input_ids.cpu().numpy(), attention_mask.cpu().numpy().astype(bool)
    split = ids.shape[1] - response_width
    prompts, responses = valid[:, :split].sum(1), valid[:, split:].sum(1)
    widths = [int(prompts[rows[0]] + responses[list(rows)].sum()) for rows in groups]
    shape = (len(groups), max(widths))
    packed, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    segment = np.full(shape, -1, np.int64)
    before = np.zeros((len(ids), response_width), np.int64)
    for place, rows in enumerate(groups):
        start = int(prompts[rows[0]])
        packed[place, :start] = ids[rows[0], split - start : split]
        positions[place, :start], segment[place, :start] = np.arange(start), 0
        end = start
        for number, row in enumerate(rows, 1):
            length = int(responses[row])
            own = slice(end, end + length)
            packed[place, own] = ids[row, split : split + length]
            positions[place, own], segment[place, own] = np.arange(start, start + length), number
            before[row, :length] = (
                place * shape[1] + np.concatenate([[start - 1], np.arange(end, end + length - 1)])[:length]
            )
            end += length
    device = input_ids.device
    return Packed(
        torch.from_numpy(packed).to(device),
        torch.from_numpy(positions).to(device),
        tree_mask(torch.from_numpy(segment).to(device)),
        torch.from_numpy(before).to(device),
    )


def tree_mask(segment: Int[Tensor, "g T"]) -> Bool[Tensor, "g 1 T T"]:
    """Return what each token sees: earlier tokens of the prompt (segment 0) and of its segment; padding sees itself."""
    width = segment.shape[1]
    key, query = segment[:, None, :], segment[:, :, None]
    causal = torch.ones(width, width, dtype=torch.bool, device=segment.device).tril()
    seen = causal & ((key == 0) | (key == query)) & (query >= 0)
    return (seen | torch.eye(width, dtype=torch.bool, device=segment.device)).unsqueeze(1)


def packed_states(
    model: nn.Module,
    input_ids: Int[Tensor, "b S"],
    attention_mask: Int[Tensor, "b S"],
    response_mask: Bool[Tensor, "b R"],
    groups: Sequence[Sequence[int]],
) -> Float[Tensor, "N H"]:
    """Return the hidden state before each valid response token, row by row."""
    packed = pack(input_ids, attention_mask, response_mask.shape[1], groups)
    out = model.get_decoder()(
        input_ids=packed.ids, attention_mask=packed.mask, position_ids=packed.positions, use_cache=False
    )
    return out.last_hidden_state.flatten(0, 1)[packed.before[response_mask]]


def can_pack(model: nn.Module, tolerance: float = 1e-3) -> bool:
    """Tell whether packed rows give this model's own hidden states, by comparing both on a few tokens.

    False for models whose attention is more than a mask over positions (sliding windows, recurrent layers, ...).
    """
    from ppo_lightning.models.token_log_probs import plain_states

    config = model.get_decoder().config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        return False
    device = next(model.parameters()).device
    ids = torch.arange(1, 9, device=device).reshape(2, 4).repeat_interleave(2, 1)[:, :7]
    ids[1, :3] = ids[0, :3]
    mask, valid = torch.ones_like(ids), torch.ones(2, 4, dtype=torch.bool, device=device)
    with torch.no_grad():
        try:
            shared = packed_states(model, ids, mask, valid, [[0, 1]])
        except (RuntimeError, ValueError, TypeError):  # the model does not take a mask of this shape
            return False
        return torch.allclose(shared, plain_states(model, ids, mask, valid), rtol=tolerance, atol=tolerance)


def share_size(prompt: int, response: float, rollouts: int, tokens_per_square: float) -> int:
    """Return how many rollouts of a prompt to pack into one row.

    A packed row of s tokens costs s + s^2 / tokens_per_square: sharing saves prompt tokens but widens the attention.

    Args:
        prompt: tokens of the prompt.
        response: mean tokens of a response.
        rollouts: rows with this prompt.
        tokens_per_square: matrix FLOPs per token over attention FLOPs per pair of tokens.
    """

    def cost(size: int) -> float:
        full, rest = divmod(rollouts, size)
        widths = [prompt + size * response] * full + ([prompt + rest * response] if rest else [])
        return sum(s + s * s / tokens_per_square for s in widths)

    return min(range(1, rollouts + 1), key=cost)
