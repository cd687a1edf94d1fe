"""The attention of our models: transformers' SDPA, with two ways that it lacks.

A new token of each response attends through the cache, which holds the keys of a prompt once for all its responses
(`engines/kv_cache.py`). Packed rows attend segment by segment, and the responses of a segment share the keys and values
of their prompt.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "ppo_lightning_sdpa"

Part = tuple[Tensor, Tensor, Tensor]
"""Queries (1, h, L, D), keys and values (1, K, L, D) of tokens that follow each other."""


@dataclass(frozen=True)
class Segment:
    """Tokens of a packed row that see each other only: a prompt and its responses, one after the other.

    Attributes:
        prompt: tokens of the prompt.
        responses: tokens of each response, (m,).
    """

    prompt: int
    responses: tuple[int, ...]

    @property
    def parts(self) -> tuple[int, ...]:
        """Tokens of the parts that attend apart: a prompt with only one response is one sequence."""
        return (self.prompt, *self.responses) if len(self.responses) > 1 else (self.prompt + sum(self.responses),)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    segments: Sequence[Segment] | None = None,
    decoding: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend like transformers' SDPA, but for packed rows and for a new token of each of many responses."""
    if segments is not None:
        return _by_segment(module, query, key, value, segments, **kwargs), None
    if decoding is not None:
        scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
        layer = decoding.layers[module.layer_idx]
        return layer.attend(query, scale, decoding.responses, decoding.hidden), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


def _by_segment(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, segments: Sequence[Segment], **kwargs: Any
) -> Tensor:
    """Attend within each segment. Tensors are cut once, into all parts: many slices would each add up a gradient."""
    sizes = [size for segment in segments for size in segment.parts]
    cut = zip(*(tensor.split(sizes, 2) for tensor in (query, key, value)), strict=True)
    parts: list[Tensor] = []
    for segment in segments:
        first: Part = next(cut)
        parts.append(_attend(module, first, None, **kwargs))
        if len(segment.responses) > 1:
            parts += _responses(module, first, list(islice(cut, len(segment.responses))), segment.responses, **kwargs)
    return torch.cat(parts, 1)


def _responses(
    module: nn.Module, prompt: Part, responses: Sequence[Part], lengths: Sequence[int], **kwargs: Any
) -> list[Tensor]:
    """Return each response's attention: it sees the prompt and its own earlier tokens.

    Responses of similar length are rows of one batch, filled up on the right, where no valid token looks.
    """
    found: dict[int, Tensor] = {}
    for rows in _alike(lengths):
        width, before = lengths[rows[0]], prompt[1].shape[2]
        query, key, value = (_side_by_side([responses[row][place] for row in rows], width) for place in range(3))
        shared_key, shared_value = (tensor.expand(len(rows), -1, -1, -1) for tensor in prompt[1:])
        part = query, torch.cat([shared_key, key], 2), torch.cat([shared_value, value], 2)
        seen = torch.ones(width, before + width, dtype=torch.bool, device=query.device).tril(before)
        out = _attend(module, part, seen[None, None], **kwargs)
        found.update({row: one[:, : lengths[row]] for row, one in zip(rows, out.split(1), strict=True)})
    return [found[row] for row in range(len(lengths))]


def _alike(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield which responses to lay side by side, the longest first: none is shorter than half of the longest."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if rows and 2 * lengths[row] < lengths[rows[0]]:
            yield rows
            rows = []
        rows.append(row)
    yield rows


def _side_by_side(parts: Sequence[Tensor], width: int) -> Tensor:
    """Join (1, heads, length, D) tensors to (m, heads, width, D)."""
    short = [width - part.shape[2] for part in parts]
    filled = zip(parts, short, strict=True)
    return torch.cat([nn.functional.pad(part, (0, 0, 0, by)) if by else part for part, by in filled])


def _attend(module: nn.Module, part: Part, mask: Tensor | None, **kwargs: Any) -> Tensor:
    return sdpa_attention_forward(module, *part, mask, **kwargs | {"is_causal": mask is None})[0]


def use_attention(model: nn.Module) -> None:
    """Make a transformers model use this file's attention."""
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)
