import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from ppo_lightning.models import attention, packing
from ppo_lightning.models.packing import can_pack, pack, packed_states
from ppo_lightning.models.token_log_probs import plain_states

GROUPS = [[0, 1, 2], [3, 4], [5]]


def gradients(model, number):
    model.zero_grad()
    number.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    "groups",
    [GROUPS, [group[::-1] for group in GROUPS], [[row] for row in range(6)]],
    ids=["prompts shared", "short before long", "rows end to end"],
)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_states_and_gradients_equal_those_of_separate_rows(llama, rows, groups, checkpointing):
    """Also where activations are computed anew in the backward pass: the gradients are then the very same."""
    ids, mask, valid = rows
    plain = plain_states(llama, ids, mask, valid)
    weights = torch.randn_like(plain)
    expected = gradients(llama, (plain * weights).sum())
    shared = packed_states(llama, ids, mask, valid, groups)
    assert torch.allclose(plain, shared, atol=1e-5)
    found = gradients(llama, (shared * weights).sum())
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-3, rtol=1e-4)
    if checkpointing:
        llama.train().gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        again = gradients(llama, (packed_states(llama, ids, mask, valid, groups) * weights).sum())
        assert all(torch.equal(a, b) for a, b in zip(again, found, strict=True))


def test_responses_do_not_see_each_other(llama, rows):
    """Negative control: with a plain causal mask over the packed row the second response sees the first."""
    ids, mask, valid = rows
    packed = pack(ids, mask, 5, GROUPS)
    width = packed.ids.shape[1]
    causal = torch.ones(1, 1, width, width, dtype=torch.bool).tril()
    hidden = llama.get_decoder()(
        input_ids=packed.ids, attention_mask=causal, position_ids=packed.positions
    ).last_hidden_state
    leaky = hidden[0, packed.before[valid]]
    assert not torch.allclose(plain_states(llama, ids, mask, valid), leaky, atol=1e-2)


def test_an_attention_that_takes_no_segments_is_seen(llama, monkeypatch):
    """The exact fallback: where the packed row is attended to as a whole, packing is off."""
    assert can_pack(llama)
    monkeypatch.setattr(packing, "ATTENTION", "sdpa")
    llama.set_attn_implementation("sdpa")
    assert not can_pack(llama)


def test_tokens_are_laid_once(rows):
    """Of a response all but the last token, behind which nothing is read."""
    ids, mask, _ = rows
    packed = pack(ids, mask, 5, GROUPS)
    assert packed.ids.shape == (1, 22)  # prompts 4, 6, 1 and of responses 4 + 0 + 2, 0 + 4, 1: no padding
    assert [(part.prompt, part.responses) for part in packed.segments] == [(4, (4, 0, 2)), (6, (0, 4)), (1, (1,))]
    assert [part.parts for part in packed.segments] == [(4, 4, 0, 2), (6, 0, 4), (2,)]
    assert packed.ids[0, :10].tolist() == [*ids[0, 2:6].tolist(), *ids[0, 6:10].tolist(), *ids[2, 6:8].tolist()]
    assert packed.positions[0, :10].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 4, 5]
    assert packed.before[2, :3].tolist() == [3, 8, 9]  # the prompt's last token, then the response's own
    assert packed.before[4].tolist() == [15, 16, 17, 18, 19]
    assert packed.before[1].tolist() == [0] * 5  # no response


@pytest.mark.parametrize("length", [0, 1])
def test_responses_of_which_nothing_is_computed(llama, rows, length):
    """One token is predicted by the prompt alone."""
    ids, mask, valid = rows
    mask, valid = mask.clone(), valid.clone()
    mask[:, 6 + length :], valid[:, length:] = 0, False
    plain = plain_states(llama, ids, mask, valid)
    assert len(plain) == int(valid.sum())
    assert torch.allclose(plain, packed_states(llama, ids, mask, valid, GROUPS), atol=1e-5)


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


def test_a_long_response_does_not_widen_the_short_ones():
    assert list(attention._alike([3, 100, 50, 49, 0, 4])) == [[1, 2], [3], [5, 0], [4]]
