import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from ppo_lightning.models.packing import can_pack, pack, packed_states, share_size
from ppo_lightning.models.token_log_probs import plain_states

GROUPS = [[0, 1, 2], [3, 4], [5]]


def gradients(model, number):
    model.zero_grad()
    number.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_states_and_gradients_equal_those_of_separate_rows(llama, rows):
    ids, mask, valid = rows
    plain, shared = plain_states(llama, ids, mask, valid), packed_states(llama, ids, mask, valid, GROUPS)
    assert torch.allclose(plain, shared, atol=1e-5)
    weights = torch.randn_like(plain)
    pairs = zip(gradients(llama, (plain * weights).sum()), gradients(llama, (shared * weights).sum()), strict=True)
    for ours, theirs in pairs:
        assert torch.allclose(ours, theirs, atol=1e-3, rtol=1e-4)


def test_responses_do_not_see_each_other(llama, rows):
    """Negative control: with a plain causal mask over the packed row the second response sees the first."""
    ids, mask, valid = rows
    packed = pack(ids, mask, 5, GROUPS)
    causal = torch.ones_like(packed.mask[0, 0]).tril().expand_as(packed.mask)
    hidden = llama.get_decoder()(
        input_ids=packed.ids, attention_mask=causal, position_ids=packed.positions
    ).last_hidden_state
    leaky = hidden.flatten(0, 1)[packed.before[valid]]
    assert not torch.allclose(plain_states(llama, ids, mask, valid), leaky, atol=1e-2)


def test_tokens_are_laid_once(rows):
    ids, mask, _ = rows
    packed = pack(ids, mask, 5, GROUPS)
    assert packed.ids.shape == (3, 12)  # prompts 4, 6, 1 and responses 5 + 0 + 3, 1 + 5, 2
    assert packed.ids[0].tolist() == [*ids[0, 2:6].tolist(), *ids[0, 6:11].tolist(), *ids[2, 6:9].tolist()]
    assert packed.positions[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6]
    assert packed.before[2, :3].tolist() == [3, 9, 10]  # the prompt's last token, then the response's own


def test_models_with_a_sliding_window_are_left_alone(llama):
    assert can_pack(llama)
    config = MistralConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        sliding_window=4,
    )
    assert not can_pack(MistralForCausalLM(config))


@pytest.mark.parametrize(
    ("prompt", "response", "expected"),
    [(105, 64, 8), (44, 11, 8), (105, 1000, 1)],
)
def test_how_many_share(prompt, response, expected):
    """With 3067 tokens per square (SmolLM2-135M): short responses all share, long ones widen the attention too much."""
    assert share_size(prompt, response, 8, 3067) == expected
