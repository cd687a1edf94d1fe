"""Bytes that one forward pass keeps for its backward, counted on a model without weights (torch's meta device)."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, PreTrainedConfig

ATTENTION = "ppo_lightning_plan"


@dataclass(frozen=True)
class Activations:
    """Bytes per token.

    Attributes:
        ends: of what is no layer: embeddings and the last norm.
        layer: of one decoder layer.
        entry: of one layer's input, which is all that is kept with gradient checkpointing.
        layers: how many there are.
    """

    ends: float
    layer: float
    entry: float
    layers: int

    def kept(self, tokens: int, checkpointing: bool) -> float:
        """Return the bytes alive when the backward pass is at its peak."""
        if checkpointing:
            return tokens * (self.ends + self.layers * self.entry + self.layer)
        return tokens * (self.ends + self.layers * self.layer)

    def passing(self, tokens: int) -> float:
        """Return the bytes of a forward pass without gradients: about one layer's."""
        return tokens * (self.ends + self.layer)


def measure(
    config: PreTrainedConfig, dtype: torch.dtype, adapt: Callable[[Any], Any], tokens: int = 128
) -> Activations:
    """Count the bytes with one and with two layers; what they differ by is a layer.

    Args:
        config: the model's.
        dtype: of its weights.
        adapt: puts an adapter into the model, if there is one.
        tokens: of the pass that is counted.
    """
    one, two = (_saved(_shortened(config, count), dtype, adapt, tokens) for count in (1, 2))
    width = config.hidden_size * dtype.itemsize
    layer = (two - one) / tokens
    return Activations(max(one / tokens - layer, 0.0), layer, float(width), config.num_hidden_layers)


def _shortened(config: PreTrainedConfig, layers: int) -> PreTrainedConfig:
    short = deepcopy(config)
    short.num_hidden_layers = layers
    if getattr(short, "layer_types", None):
        short.layer_types = short.layer_types[:layers]
    return short


def _saved(config: PreTrainedConfig, dtype: torch.dtype, adapt: Callable[[Any], Any], tokens: int) -> int:
    """Return the bytes of all storages, weights left out, that autograd keeps for one pass."""
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)
    with torch.device("meta"):
        model = adapt(AutoModelForCausalLM.from_config(config, dtype=dtype))
        ids = torch.zeros(1, tokens, dtype=torch.int64)
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)  # taken as it is: to make one, values would be needed
    model.set_attn_implementation(ATTENTION)
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in weights:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.get_decoder()(input_ids=ids, attention_mask=mask, use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


class _FusedAttention(torch.autograd.Function):
    """Keeps what fused attention keeps: queries, keys, values, output and one number per query; never the square."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, tokens, width = query.shape
        out = query.new_empty(batch, tokens, heads, width).transpose(1, 2)  # as the kernel lays it: heads side by side
        ctx.save_for_backward(query, key, value, out, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the right shapes."""
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3])


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    return _FusedAttention.apply(query, key, value).transpose(1, 2), None
