"""A key-value cache with room to grow, and attention for one new token without copying keys for shared heads.

transformers' dynamic cache copies all keys and values at every token, and its grouped-query attention copies them once
per query head: on a CPU that costs more than the model. Here a token is written in place, and the query heads of a
group are treated as rows of one query.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "ppo_lightning_sdpa"


class RoomyLayer(DynamicLayer):
    """One layer's keys and values in buffers longer than what is in use."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append (B, heads, new, D) keys and values and return all in use."""
        new = key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            shape = (*key_states.shape[:-2], new + self.room, key_states.shape[-1])
            self.key_buffer, self.value_buffer = key_states.new_empty(shape), value_states.new_empty(shape)
        self.key_buffer[..., self.length : self.length + new, :] = key_states
        self.value_buffer[..., self.length : self.length + new, :] = value_states
        return self._show(self.length + new)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Give every row `repeats` copies, next to each other."""
        self.key_buffer = self.key_buffer.repeat_interleave(repeats, 0)
        self.value_buffer = self.value_buffer.repeat_interleave(repeats, 0)
        self._show(self.length)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the given rows."""
        self.key_buffer, self.value_buffer = self.key_buffer[indices], self.value_buffer[indices]
        self._show(self.length)

    def _show(self, length: int) -> tuple[Tensor, Tensor]:
        self.length = length
        keys, values = self.key_buffer[..., :length, :], self.value_buffer[..., :length, :]
        self.keys, self.values = keys, values
        return keys, values


def make_cache(config: PreTrainedConfig, room: int) -> DynamicCache:
    """Return an empty cache that `room` tokens can join after the prompt; other layer kinds keep transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend like transformers' SDPA; one new token per row takes the path that does not copy keys."""
    groups = query.shape[1] // key.shape[1]
    if query.shape[2] != 1 or groups == 1 or torch.is_grad_enabled():
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    batch, heads, _, width = query.shape
    grouped = query.reshape(batch, key.shape[1], groups, width)
    out = nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling")
    )
    return out.reshape(batch, 1, heads, width), None


def use_attention(model: nn.Module) -> None:
    """Make a transformers model use this file's attention."""
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)
