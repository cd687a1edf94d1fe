import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from ppo_lightning.metrics.flops import (
    MLP_MATRICES,
    DenseShape,
    dense_shape,
    device_peak,
    forward_flops,
    training_flops,
)

TINY = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_config(family):
    if family == "gpt2":
        return AutoConfig.for_model("gpt2", n_embd=24, n_layer=3, n_head=4, vocab_size=50)
    if family == "gpt_neox":  # has no key-value heads of its own
        return AutoConfig.for_model(family, **{key: value for key, value in TINY.items() if "key_value" not in key})
    return AutoConfig.for_model(family, **TINY)


@pytest.mark.parametrize("family", sorted(MLP_MATRICES))
def test_weights_are_those_of_the_matrices_of_the_real_model(family):
    config = tiny_config(family)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    matrices = {name: m.weight.numel() for name, m in model.named_modules() if isinstance(m, torch.nn.Linear | Conv1D)}
    head = matrices.pop(next(name for name in matrices if name in ("lm_head", "embed_out")))
    shape = dense_shape(config)
    assert shape.layer_weights == sum(matrices.values())
    assert shape.head_weights == head
    assert len(shape.windows) == config.num_hidden_layers


def test_worked_example():
    shape = DenseShape(layer_weights=100, head_weights=10, attention_width=8, windows=(None,))
    # 5 tokens: 2 * (100 + 10) each; attention: two products of 2 operations x 8 x (3**2 + 2**2) / 2 pairs
    assert forward_flops(shape, [3, 2]) == 2 * 110 * 5 + 4 * 8 * 6.5
    assert forward_flops(shape, [3, 2], scored=2) == 2 * (100 * 5 + 10 * 2) + 4 * 8 * 6.5
    assert training_flops(shape, [3, 2]) == 3 * forward_flops(shape, [3, 2])
    assert training_flops(shape, [3, 2], frozen=True) == 2 * 2 * 110 * 5 + 3 * 4 * 8 * 6.5


def test_a_sliding_window_bounds_what_a_token_meets():
    full = DenseShape(0, 0, 1, (None,))
    slid = DenseShape(0, 0, 1, (4,))
    assert forward_flops(slid, [4]) == forward_flops(full, [4])
    # beyond the window every token meets 4 others
    assert forward_flops(slid, [10]) - forward_flops(slid, [9]) == 4 * 4
    assert forward_flops(full, [10]) > forward_flops(slid, [10])


def test_gemma_slides_on_some_layers_only():
    config = AutoConfig.for_model("gemma2", **TINY, sliding_window=7)
    assert sorted(map(str, dense_shape(config).windows)) == ["7", "7", "None"]


def test_a_critic_ends_in_one_column():
    assert dense_shape(tiny_config("llama"), outputs=1).head_weights == 24


def test_an_unknown_family_has_no_shape():
    assert dense_shape(AutoConfig.for_model("qwen3_moe")) is None


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("AMD Instinct MI300X", 1307e12),
        ("NVIDIA A10G", 70e12),
        ("cpu", None),
        ("NVIDIA X9000", None),
    ],
)
def test_peaks_by_whole_words_of_the_name(name, peak):
    assert device_peak(name, "bfloat16") == peak
    assert device_peak(name, "float32") is None
