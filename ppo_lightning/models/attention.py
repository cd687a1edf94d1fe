"""The attention of our models: transformers' SDPA, with two ways that it lacks.

A new token of each response attends through the cache, which holds the keys of a prompt once for all its responses
(`engines/kv_cache.py`). Packed rows attend segment by segment, and the responses of a segment share the keys and values
of their prompt.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "ppo_lightning_sdpa"


@dataclass(frozen=True)
class Segment:
    """Tokens of a packed row that see each other only: a prompt and its responses, one after the other.

    Attributes:
        begin: its first token.
        prompt: tokens of the prompt.
        responses: tokens of each response, (m,).
    """

    begin: int
    prompt: int
    responses: tuple[int, ...]

    @property
    def end(self) -> int:
        """The token behind its last."""
        return self.begin + self.prompt + sum(self.responses)


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
    parts: list[Tensor] = []
    for segment in segments:
        own = slice(segment.begin, segment.end)
        tokens = query[:, :, own], key[:, :, own], value[:, :, own]
        if len(segment.responses) == 1:
            parts.append(_attend(module, *tokens, None, **kwargs))
        else:
            parts += _tree(module, *tokens, segment, **kwargs)
    return torch.cat(parts, 1)


def _tree(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, segment: Segment, **kwargs: Any
) -> Iterator[Tensor]:
    """Yield the prompt's attention and each response's: it sees the prompt and its own earlier tokens.

    Responses of similar length are rows of one batch, filled up on the right, where no valid token looks.
    """
    prompt, lengths = segment.prompt, segment.responses
    yield _attend(module, query[:, :, :prompt], key[:, :, :prompt], value[:, :, :prompt], None, **kwargs)
    queries, keys, values = (tensor[0, :, prompt:].split(list(lengths), 1) for tensor in (query, key, value))
    found: dict[int, Tensor] = {}
    for rows in _alike(lengths):
        width = lengths[rows[0]]
        shared = [tensor[:, :, :prompt].expand(len(rows), -1, -1, -1) for tensor in (key, value)]
        own = [_side_by_side([parts[row] for row in rows], width) for parts in (keys, values)]
        seen = torch.ones(width, prompt + width, dtype=torch.bool, device=query.device).tril(prompt)
        both = [torch.cat(pair, 2) for pair in zip(shared, own, strict=True)]
        asked = _side_by_side([queries[row] for row in rows], width)
        out = _attend(module, asked, both[0], both[1], seen[None, None], **kwargs)
        found.update({row: out[place : place + 1, : lengths[row]] for place, row in enumerate(rows)})
    yield from (found[row] for row in range(len(lengths)))


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
    """Stack (heads, length, D) tensors as (m, heads, width, D)."""
    return torch.stack([nn.functional.pad(part, (0, 0, 0, width - part.shape[1])) for part in parts])


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any) -> Tensor:
    return sdpa_attention_forward(module, query, key, value, mask, **kwargs | {"is_causal": mask is None})[0]


def use_attention(model: nn.Module) -> None:
    """Make a transformers model use this file's attention."""
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)
