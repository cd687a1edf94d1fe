"""Key-value caches for many responses of few prompts.

The keys and values of a prompt are held once for all its responses, and read once per token for all of them; those of
the responses are written in place. transformers' own cache copies everything at every token, which on a CPU costs more
than the model; it serves models whose attention is more than a mask over positions.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ppo_lightning.models.packing import alike, sees_all_positions
from ppo_lightning.models.token_log_probs import at_least_float32


class Responses:
    """Which response continues which prompt, and how to bring tensors from one order into the other.

    Legend: U prompts, n the most responses of one, B responses, K key heads, g query heads of each.

    Args:
        owner: (B,) the prompt of each response, ascending.
    """

    def __init__(self, owner: Int[Tensor, "B"]) -> None:
        self.prompts, self.owner, counts = owner.unique_consecutive(return_inverse=True, return_counts=True)
        self.most = int(counts.max())
        begins = counts.cumsum(0) - counts
        self.slots = self.owner * self.most + torch.arange(len(owner), device=owner.device) - begins[self.owner]
        self.full = len(owner) == len(counts) * self.most

    def by_prompt(self, rows: Float[Tensor, "B K g w"]) -> Float[Tensor, "U K n*g w"]:
        """Put the responses of each prompt side by side."""
        if not self.full:
            rows = rows.new_zeros(len(self.prompts) * self.most, *rows.shape[1:]).index_copy_(0, self.slots, rows)
        return rows.unflatten(0, (-1, self.most)).transpose(1, 2).flatten(2, 3)

    def by_response(self, rows: Float[Tensor, "U K n*g w"]) -> Float[Tensor, "B K g w"]:
        """Undo `by_prompt`."""
        rows = rows.unflatten(2, (self.most, -1)).transpose(1, 2).flatten(0, 1)
        return rows if self.full else rows[self.slots]


class SharedLayer(DynamicLayer):
    """One layer's keys and values: each prompt's once, and each response's own in buffers with room for all of it."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.length, self.prompts = room, 0, 0
        self.own: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Take the prompts' keys and values (U, K, P, D) at first, then those of one more token (B, K, 1, D)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values, self.prompts = key_states.contiguous(), value_states.contiguous(), len(key_states)
            return self.keys, self.values
        if self.own is None:
            rows, heads, _, width = key_states.shape
            self.own = (
                key_states.new_empty(rows, heads, self.room, width),
                key_states.new_empty(rows, heads, self.room, width),
            )
        for buffer, new in zip(self.own, (key_states, value_states), strict=True):
            buffer[:, :, self.length] = new[:, :, 0]
        self.length += 1
        return key_states, value_states

    def attend(
        self, query: Float[Tensor, "B h 1 D"], scale: float, responses: Responses, hidden: Bool[Tensor, "U 1 1 P"]
    ) -> Float[Tensor, "B 1 h D"]:
        """Attend from the newest token of each response to its prompt and to its own tokens."""
        assert self.own is not None
        keys, values = (buffer[:, :, : self.length] for buffer in self.own)
        rows = query.reshape(len(query), keys.shape[1], -1, query.shape[-1]) * scale
        to_prompt = (responses.by_prompt(rows) @ self.keys.mT).masked_fill_(hidden, -torch.inf)
        scores = torch.cat([responses.by_response(to_prompt), rows @ keys.mT], -1)
        weights = scores.softmax(-1, dtype=at_least_float32(query)).to(query.dtype)
        of_prompt, of_own = weights.split([self.keys.shape[2], self.length], -1)
        out = responses.by_response(responses.by_prompt(of_prompt) @ self.values) + of_own @ values
        return out.reshape(len(query), 1, *query.shape[1::2])

    def keep(self, rows: Int[Tensor, "b"], prompts: Int[Tensor, "u"]) -> None:
        """Keep the given responses and prompts."""
        if len(prompts) < self.prompts:
            self.keys, self.values = self.keys[prompts], self.values[prompts]
            self.prompts = len(prompts)
        if self.own is not None:
            self.own = self.own[0][rows], self.own[1][rows]


class SharedCache(DynamicCache):
    """The keys and values of a batch of prompts and of their responses.

    Args:
        model: what decodes.
        mask: (U, P) of the left-padded prompts, 1 on tokens.
        room: tokens that each response may have.
    """

    def __init__(self, model: PreTrainedModel, mask: Int[Tensor, "U P"], room: int) -> None:
        super().__init__(config=model.config)
        self.layers = [SharedLayer(room) for _ in self.layers]
        self.hidden = (mask == 0)[:, None, None]

    def start(self, owner: Int[Tensor, "B"]) -> None:
        """Continue prompt owner[i] with response i."""
        self.responses = Responses(owner)

    def keep(self, rows: Int[Tensor, "b"]) -> None:
        """Keep the given responses."""
        self.responses = Responses(self.responses.owner[rows])
        for layer in self.layers:
            layer.keep(rows, self.responses.prompts)
        self.hidden = self.hidden[self.responses.prompts]

    def inputs(self) -> dict[str, Any]:
        """Return what the model is called with for the next token."""
        seen = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.hidden.device)  # the cache brings its own mask
        return {"attention_mask": seen, "past_key_values": self, "decoding": self}


class PlainCache(DynamicCache):
    """transformers' cache, with the same use: every response has a copy of its prompt's keys and values."""

    def __init__(self, model: PreTrainedModel, mask: Int[Tensor, "U P"], room: int) -> None:
        super().__init__(config=model.config)
        self.mask = mask

    def start(self, owner: Int[Tensor, "B"]) -> None:
        """Continue prompt owner[i] with response i."""
        self.keep(owner)

    def keep(self, rows: Int[Tensor, "b"]) -> None:
        """Keep the given responses."""
        self.batch_select_indices(rows)
        self.mask = self.mask[rows]

    def inputs(self) -> dict[str, Any]:
        """Return what the model is called with for the next token."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], -1)
        return {"attention_mask": self.mask, "past_key_values": self}


def cache_for(model: PreTrainedModel) -> type[SharedCache] | type[PlainCache]:
    """Return the kind of cache that decodes this model right, by comparing a token's logits with a plain forward's."""
    if not sees_all_positions(model):
        return PlainCache
    ids = torch.arange(1, 5, device=next(model.parameters()).device).reshape(2, 2)
    owner = torch.tensor([0, 0, 1], device=ids.device)
    token = ids.flatten()[:3, None]
    with torch.inference_mode():
        expected = model(input_ids=torch.cat([ids[owner], token], -1), use_cache=False).logits[:, -1]
        cache = SharedCache(model, torch.ones_like(ids), 1)
        try:
            model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache.start(owner)
            places = torch.full_like(token, ids.shape[1])
            found = model(input_ids=token, position_ids=places, use_cache=True, **cache.inputs()).logits[:, -1]
        except (RuntimeError, ValueError, TypeError):  # the model does not take what it is called with
            return PlainCache
    return SharedCache if alike(found, expected) else PlainCache
