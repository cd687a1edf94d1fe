"""Floating-point operations of dense decoder models and peaks of devices: what model FLOPs utilisation is made of.

Torch-free. A multiply-add counts as two operations; the backward pass of a trained weight costs twice its forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Matrices of the MLP by transformers' `model_type`: 3 with a gate (SwiGLU and kin), 2 without. Others are not known.
MLP_MATRICES = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "seed_oss", "phi3", "olmo", "olmo2"), 3),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "granite"), 3),
    **dict.fromkeys(("gpt2", "gpt_neox", "phi", "starcoder2", "apertus", "nemotron"), 2),
}

# Dense bf16 tensor peaks in FLOP/s, from the vendors' data sheets. Words must all occur in the device's name.
DEVICE_PEAKS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("H100", "PCIE"), 756e12),
    (("H100", "NVL"), 835e12),
    (("A100",), 312e12),
    (("A800",), 312e12),
    (("A40",), 149.7e12),
    (("A10G",), 70e12),
    (("A10",), 125e12),
    (("B200",), 2250e12),
    (("GB200",), 2500e12),
    (("GH200",), 989e12),
    (("H20",), 148e12),
    (("H100",), 989e12),
    (("H200",), 989e12),
    (("H800",), 989e12),
    (("L4",), 121e12),
    (("L20",), 119.5e12),
    (("L40",), 181e12),
    (("L40S",), 362e12),
    (("MI250X",), 383e12),
    (("MI300X",), 1307e12),
    (("4090",), 165.2e12),
    (("3090",), 71e12),
)


@dataclass(frozen=True)
class DenseShape:
    """What the operations of a dense decoder depend on.

    Attributes:
        layer_weights: entries of all matrices of all layers; every token meets each once.
        head_weights: entries of the matrix that ends the model: hidden x vocabulary, or hidden x 1 for a critic.
        attention_width: heads x head size.
        windows: sliding window of each layer, None where attention is full.
        adapter_weights: entries of the LoRA matrices beside them, which are trained where those are frozen.
    """

    layer_weights: int
    head_weights: int
    attention_width: int
    windows: tuple[int | None, ...]
    adapter_weights: int = 0


def dense_shape(config: Any, outputs: int | None = None, adapter_weights: int = 0) -> DenseShape | None:
    """Read the shape off a transformers config; None for a family that is not in `MLP_MATRICES` (MoE, hybrids).

    Args:
        config: a `PretrainedConfig`.
        outputs: width of the last matrix, 1 for a critic; None: the vocabulary.
        adapter_weights: entries of the LoRA matrices.
    """
    if config.model_type not in MLP_MATRICES:
        return None
    hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or hidden // heads
    inner = getattr(config, "intermediate_size", None) or _gpt2_inner(config)
    attention = hidden * head_size * (2 * heads + 2 * key_heads)
    weights = layers * (attention + MLP_MATRICES[config.model_type] * hidden * inner)
    return DenseShape(
        layer_weights=weights,
        head_weights=hidden * (config.vocab_size if outputs is None else outputs),
        attention_width=heads * head_size,
        windows=_windows(config, layers),
        adapter_weights=adapter_weights,
    )


def forward_flops(shape: DenseShape, lengths: Sequence[int], scored: int | None = None) -> float:
    """Return the operations of one forward pass over sequences of the given lengths (tokens).

    Looking up the input embedding costs none. Attention is causal: a token meets itself and the tokens before it,
    counted as half the square, or as its window where that is smaller.

    Args:
        shape: of the model.
        lengths: valid tokens of each sequence, prompt and response.
        scored: tokens whose logits are computed; None: all.
    """
    tokens = sum(lengths)
    head = shape.head_weights * (tokens if scored is None else scored)
    attention = 4.0 * shape.attention_width * sum(_pairs(window, lengths) for window in shape.windows)
    return 2.0 * ((shape.layer_weights + shape.adapter_weights) * tokens + head) + attention


def training_flops(shape: DenseShape, lengths: Sequence[int], scored: int | None = None, frozen: bool = False) -> float:
    """Return the operations of a forward and a backward pass.

    Args:
        shape: of the model.
        lengths: valid tokens of each sequence.
        scored: tokens whose logits are computed; None: all.
        frozen: the base weights are not trained (LoRA), so that their own gradient is never computed.
    """
    forward = forward_flops(shape, lengths, scored)
    if not frozen:
        return 3.0 * forward
    weights = 2.0 * (
        shape.layer_weights * sum(lengths) + shape.head_weights * (sum(lengths) if scored is None else scored)
    )
    return 3.0 * forward - weights


def device_peak(name: str, dtype: str) -> float | None:
    """Return a device's peak in FLOP/s for dense matrices of a 16-bit type; None where it is not known.

    Args:
        name: as the driver reports it, such as "NVIDIA A100-SXM4-80GB".
        dtype: "bfloat16" or "float16"; peaks of other types depend on settings and are not known here.
    """
    if dtype not in ("bfloat16", "float16"):
        return None
    words = name.upper().replace("-", " ").replace("_", " ").split()
    return next((peak for needed, peak in DEVICE_PEAKS if all(word in words for word in needed)), None)


def _gpt2_inner(config: Any) -> int:
    return getattr(config, "n_inner", None) or 4 * config.hidden_size


def _windows(config: Any, layers: int) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return (window,) * layers


def _pairs(window: int | None, lengths: Sequence[int]) -> float:
    """Return how many (token, earlier token) pairs attention meets, over all sequences."""
    if window is None:
        return sum(length * length for length in lengths) / 2.0
    return sum(length * length / 2.0 if length <= window else window * (length - window / 2.0) for length in lengths)
