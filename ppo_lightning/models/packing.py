"""Lay the rows of a micro-batch end to end, without padding, and compute each prompt once for all its responses.

Rows of one prompt become one segment `prompt, r1, ..., rm`: positions restart behind the prompt for every response, and
a response sees the prompt and itself only. Attention runs segment by segment, everything else over all tokens at once,
so hidden states are those of the separate rows. A response's last token is left out: nothing is read behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ppo_lightning.models.attention import ATTENTION, Segment, use_attention


@dataclass(frozen=True)
class Packed:
    """All rows of a micro-batch as one row of T tokens.

    Attributes:
        ids: (1, T) int64 token ids.
        positions: (1, T) int64 position of each token in its own sequence.
        segments: where each prompt with its responses lies, and what its tokens see of each other.
        before: (b, R) int64, index into T of the token before each response token; 0 where there is none.
    """

    ids: Int[Tensor, "1 T"]
    positions: Int[Tensor, "1 T"]
    segments: tuple[Segment, ...]
    before: Int[Tensor, "b R"]


def pack(
    input_ids: Int[Tensor, "b S"],
    attention_mask: Int[Tensor, "b S"],
    response_width: int,
    groups: Sequence[Sequence[int]],
) -> Packed:
    """Pack rows, those that share a prompt into one segment.

    Args:
        input_ids: left-padded prompts, then right-padded responses.
        attention_mask: 1 on tokens.
        response_width: R.
        groups: rows of each segment; all rows of one have the same prompt.
    """
    ids, valid = input_ids.cpu().numpy(), attention_mask.cpu().numpy().astype(bool)
    split = ids.shape[1] - response_width
    prompts, responses = valid[:, :split].sum(1), valid[:, split:].sum(1)
    read = tokens_read(responses)
    parts: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    segments = []
    before = np.zeros((len(ids), response_width), np.int64)
    end = 0
    for rows in groups:
        prompt, begin = int(prompts[rows[0]]), end
        parts.append(ids[rows[0], split - prompt : split])
        positions.append(np.arange(prompt))
        end += prompt
        for row in rows:
            length = int(read[row])
            parts.append(ids[row, split : split + length])
            positions.append(np.arange(prompt, prompt + length))
            if responses[row]:
                before[row, : length + 1] = [begin + prompt - 1, *range(end, end + length)]
            end += length
        segments.append(Segment(prompt, tuple(int(read[row]) for row in rows)))
    device = input_ids.device
    return Packed(
        torch.from_numpy(np.concatenate(parts)).unsqueeze(0).to(device),
        torch.from_numpy(np.concatenate(positions)).unsqueeze(0).to(device),
        tuple(segments),
        torch.from_numpy(before).to(device),
    )


def tokens_read(responses: np.ndarray) -> np.ndarray:
    """Return how many tokens of responses of so many tokens (b,) the model computes: not the last."""
    return (responses - 1).clip(min=0)


def packed_states(
    model: nn.Module,
    input_ids: Int[Tensor, "b S"],
    attention_mask: Int[Tensor, "b S"],
    response_mask: Bool[Tensor, "b R"],
    groups: Sequence[Sequence[int]],
) -> Float[Tensor, "N H"]:
    """Return the hidden state before each valid response token, row by row."""
    packed = pack(input_ids, attention_mask, response_mask.shape[1], groups)
    decoder = model.get_decoder()
    if decoder.config._attn_implementation != ATTENTION:
        use_attention(decoder)
    out = decoder(
        input_ids=packed.ids,
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=packed.ids.device),  # segments bring their own
        position_ids=packed.positions,
        use_cache=False,
        segments=packed.segments,
    )
    return out.last_hidden_state[0, packed.before[response_mask]]


def sees_all_positions(model: nn.Module) -> bool:
    """Tell whether a token sees all earlier ones in every layer: no sliding window, no recurrent layer."""
    config = model.get_decoder().config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return kinds == {"full_attention"} and not getattr(config, "sliding_window", None)


def alike(found: Float[Tensor, "N H"], expected: Float[Tensor, "N H"]) -> bool:
    """Tell whether every vector is what is expected but for rounding (root of the type's epsilon, of its length).

    Single numbers say little: hidden states of real models have a few very large ones, whose rounding the others share.
    """
    tolerance = torch.finfo(found.dtype).eps ** 0.5
    found, expected = found.float(), expected.float()
    return bool(((found - expected).norm(dim=-1) <= tolerance * expected.norm(dim=-1)).all())


def can_pack(model: nn.Module) -> bool:
    """Tell whether packed rows give this model's own hidden states, by comparing both on a few tokens.

    False for models whose attention is more than a mask over positions (sliding windows, recurrent layers, ...).
    """
    from ppo_lightning.models.token_log_probs import plain_states

    if not sees_all_positions(model):
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
        return alike(shared, plain_states(model, ids, mask, valid))
