"""The critic starts from the actor's model or another one, and its first values are 0."""

import pytest
import torch
from transformers import LlamaForCausalLM

from ppo_lightning.config.load import load
from ppo_lightning.models.critic import load_critic


@pytest.mark.parametrize("own", [False, True], ids=["model.path", "critic.path"])
def test_it_starts_from_a_model_and_near_zero(llama, rows, tmp_path, own):
    llama.save_pretrained(tmp_path / "policy")
    torch.manual_seed(7)
    other = LlamaForCausalLM(llama.config)
    other.save_pretrained(tmp_path / "other")
    overrides = [f"model.path={tmp_path / 'policy'}", *([f"critic.path={tmp_path / 'other'}"] if own else [])]
    critic = load_critic(load(None, overrides).config)
    source = (other if own else llama).get_decoder().state_dict()
    assert all(torch.equal(source[name], tensor) for name, tensor in critic.decoder.state_dict().items())
    ids, mask, _ = rows
    states = critic.decoder(input_ids=ids, attention_mask=mask).last_hidden_state.flatten(0, 1)
    values = critic.values(states)
    assert values.shape == (66,)
    assert float(values.abs().max()) == 0.0
    (values - 1.0).square().sum().backward()
    assert float(critic.head.weight.grad.norm()) > 0  # zero values do not keep it from learning


def test_a_drawn_head_would_start_away_from_zero(llama, rows):
    """Negative control: torch's own start of a linear layer."""
    ids, mask, _ = rows
    states = llama.get_decoder()(input_ids=ids, attention_mask=mask).last_hidden_state
    assert float(torch.nn.Linear(32, 1)(states).abs().max()) > 0.05


@pytest.mark.parametrize(
    ("model", "head"), [("float64", torch.float64), ("float32", torch.float32), ("bfloat16", torch.float32)]
)
def test_its_head_is_no_smaller_than_float32(llama, tmp_path, model, head):
    llama.save_pretrained(tmp_path)
    critic = load_critic(load(None, [f"model.path={tmp_path}", f"model.dtype={model}"]).config)
    states = torch.ones(3, 32, dtype=getattr(torch, model))
    assert critic.values(states).dtype == critic.head.weight.dtype == head
