"""An adapter beside frozen weights: off it is the base, merged it is the whole, saved it comes back exactly."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from ppo_lightning.config.schema import ModelConfig
from ppo_lightning.engines.checksum import agree, checksum, column_checksum
from ppo_lightning.engines.transformers import TransformersEngine
from ppo_lightning.errors import CheckpointError, ConfigError
from ppo_lightning.metrics.flops import DenseShape, forward_flops, training_flops
from ppo_lightning.models.lora import (
    adapter_off,
    adapter_size,
    adapter_weights,
    add_adapter,
    has_adapter,
    load_adapter,
    merge,
    named_weights,
    reference_policy,
    save_adapter,
    save_whole,
)

IDS = torch.arange(12).reshape(2, 6)


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


@pytest.fixture
def base(llama):
    return copy.deepcopy(llama)


@pytest.fixture
def adapted(base, llama):
    """The model with an adapter that was moved away from its start; `base` is a copy of it before."""
    found = add_adapter(llama, ModelConfig(lora_rank=4))
    torch.manual_seed(2)
    for name, parameter in found.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return found


def test_it_starts_as_the_model_itself(llama, base):
    expected = logits(base)
    assert torch.equal(logits(add_adapter(llama, ModelConfig(lora_rank=4))), expected)
    assert has_adapter(llama)
    assert not has_adapter(add_adapter(base, ModelConfig(lora_rank=0)))


def test_only_the_adapter_is_trained_and_in_float32(base):
    adapted = add_adapter(base.bfloat16(), ModelConfig(lora_rank=4))
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    assert trained
    assert all(".lora_" in name and p.dtype == torch.float32 for name, p in trained.items())
    # r (in + out) per matrix; per layer: q, o 32 + 32, k, v 32 + 16, gate, up, down 32 + 64.
    assert adapter_size(adapted) == 2 * 4 * (2 * 64 + 2 * 48 + 3 * 96)


def test_off_it_is_the_base_and_on_again_afterwards(adapted, base):
    on = logits(adapted)
    with adapter_off(adapted) as reference:
        assert torch.equal(logits(reference), logits(base))
    assert torch.equal(logits(adapted), on)
    assert not torch.allclose(on, logits(base), atol=1e-2)
    assert all(p.requires_grad for name, p in adapted.named_parameters() if ".lora_" in name)
    with pytest.raises(RuntimeError), adapter_off(adapted):
        raise RuntimeError
    assert torch.equal(logits(adapted), on)


def test_the_reference_needs_no_second_copy(adapted, base):
    with reference_policy(adapted, None) as reference:
        assert reference is adapted
        assert torch.equal(logits(reference), logits(base))
    with reference_policy(adapted, base) as reference:
        assert reference is base


def test_merged_weights_have_the_base_s_names_and_the_adapter_s_numbers(adapted, base):
    merged = dict(named_weights(adapted))
    assert list(merged) == [name for name, _ in base.named_parameters()]
    base.load_state_dict(merged, strict=False)
    assert torch.allclose(logits(base), logits(adapted), atol=1e-4)
    plain = dict(base.named_parameters())
    assert all(tensor is plain[name] for name, tensor in named_weights(base))


def test_pitfall_36_merging_again_and_again_never_touches_what_is_trained(adapted, base):
    """Two steps: the engine gets what the policy is now, each time; the trained tensors are what the step left."""
    engine = TransformersEngine(base, 0, 4, 64)
    for version in (1, 2):
        with torch.no_grad():
            for parameter in adapter_weights(adapted).values():
                parameter.add_(0.01)
        before = {name: p.clone() for name, p in adapted.named_parameters()}
        engine.sync_weights(named_weights(adapted), version)
        assert agree(engine.checksum(), engine.expected_checksum(adapted))
        assert torch.allclose(logits(base), logits(adapted), atol=1e-4)
        assert all(torch.equal(before[name], p) for name, p in adapted.named_parameters())
        names = [name for name, _ in named_weights(adapted)]
        assert column_checksum(adapted, torch.float32, version, names) != column_checksum(
            adapted, torch.float32, version + 1, names
        )


def test_pitfall_36_merging_in_place_is_wrong_at_the_second_step(adapted):
    """Negative control: added into the base and never taken out, the second merge holds the adapter twice."""
    layer = adapted.model.layers[0].self_attn.q_proj
    first = merge(layer)
    with torch.no_grad():
        layer.base_layer.weight.copy_(first)
    assert not torch.allclose(merge(layer), first, atol=1e-3)


def test_weights_left_behind_are_seen(adapted, base):
    """Negative control: an engine that was given the weights before the update has another checksum."""
    engine = TransformersEngine(base, 0, 4, 64)
    engine.sync_weights(named_weights(adapted), 1)
    with torch.no_grad():
        next(iter(adapter_weights(adapted).values())).add_(0.01)
    assert not agree(engine.checksum(), checksum(named_weights(adapted)))


def test_files_give_back_the_same_policy(adapted, base, tmp_path):
    from peft import PeftModel

    base.save_pretrained(tmp_path / "base")
    save_whole(adapted, tmp_path / "actor")
    save_adapter(adapted, tmp_path / "adapter")
    assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "actor")), logits(adapted), atol=1e-4)
    peft = PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert torch.equal(logits(peft), logits(adapted))
    other = add_adapter(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), ModelConfig(lora_rank=4))
    load_adapter(other, tmp_path / "adapter")
    assert torch.equal(logits(other), logits(adapted))
    saved = adapter_weights(adapted)
    assert all(torch.equal(saved[name], tensor) for name, tensor in adapter_weights(other).items())


def test_an_adapter_of_another_rank_does_not_fit(adapted, base, tmp_path):
    save_adapter(adapted, tmp_path)
    with pytest.raises(CheckpointError, match=r"does not fit model\.lora_rank"):
        load_adapter(add_adapter(base, ModelConfig(lora_rank=2)), tmp_path)
    with pytest.raises(CheckpointError, match="holds no adapter"):
        load_adapter(adapted, tmp_path / "nowhere")


@pytest.mark.parametrize(("targets", "message"), [(["nothing"], "nothing"), (["lm_head"], "output head")])
def test_targets_that_cannot_be(base, targets, message):
    with pytest.raises(ConfigError, match=rf"model\.lora_targets.*{message}"):
        add_adapter(base, ModelConfig(lora_rank=4, lora_targets=targets))


def test_named_targets_only(base):
    adapted = add_adapter(base, ModelConfig(lora_rank=4, lora_targets=["q_proj"]))
    assert adapter_size(adapted) == 2 * 4 * 64


def test_pitfall_59_operations_of_an_adapter():
    """100 frozen and 10 adapter weights, no head, no attention, 1 token.

    Forward 2 (100 + 10) = 220. Backward: gradients of activations through both, 220, and of the 10 weights, 20: 460.
    """
    shape = DenseShape(100, 0, 0, (None,), adapter_weights=10)
    assert forward_flops(shape, [1]) == 220.0
    assert training_flops(shape, [1], frozen=True) == 460.0
    assert training_flops(DenseShape(100, 0, 0, (None,)), [1]) == 600.0  # all weights trained: 3 x 200
