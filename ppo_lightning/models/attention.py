"""The attention of our models: transformers' SDPA, with two ways that it lacks.

One new token per row attends without copying keys once per query head, which on a CPU costs more than the model: the
query heads of a group are treated as rows of one query. Packed rows attend segment by segment, each with its own mask.
"""

from collections.abc import Sequence
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
    """Tokens begin ... end - 1 of a packed row, which see each other only.

    Attributes:
        begin, end: of its tokens.
        mask: (1, 1, w, w) bool, what each of them sees; None: all before it and itself.
    """

    begin: int
    end: int
    mask: Tensor | None


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    segments: Sequence[Segment] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend like transformers' SDPA; packed rows and single new tokens each take their own way."""
    if segments is not None:
        return _by_segment(module, query, key, value, segments, **kwargs), None
    groups = query.shape[1] // key.shape[1]
    if query.shape[2] != 1 or groups == 1 or torch.is_grad_enabled():
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    batch, heads, _, width = query.shape
    grouped = query.reshape(batch, key.shape[1], groups, width)
    out = nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling")
    )
    return out.reshape(batch, 1, heads, width), None


def _by_segment(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, segments: Sequence[Segment], **kwargs: Any
) -> Tensor:
    parts = []
    for segment in segments:
        own = slice(segment.begin, segment.end)
        options = kwargs | {"is_causal": segment.mask is None}
        mine = query[:, :, own], key[:, :, own], value[:, :, own]
        parts.append(sdpa_attention_forward(module, mine[0], mine[1], mine[2], segment.mask, **options)[0])
    return torch.cat(parts, 1)


def use_attention(model: nn.Module) -> None:
    """Make a transformers model use this file's attention."""
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)
