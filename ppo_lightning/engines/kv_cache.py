"""A key-value cache with room to grow.

transformers' dynamic cache copies all keys and values at every token: on a CPU that costs more than the model. Here a
token is written in place.
"""

from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer


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
