import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ppo_lightning.engines.base import Request, Sampling
from ppo_lightning.engines.transformers import TransformersEngine
from ppo_lightning.errors import EngineError


@pytest.fixture
def engine():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,
        max_position_embeddings=64,
    )
    return TransformersEngine(LlamaForCausalLM(config), pad_id=0, sequences_per_batch=64, context=64)


def requests(prompts, samples=1):
    return [
        Request(place * samples + sample, tuple(prompt), (1, 0, 1, place, sample))
        for place, prompt in enumerate(prompts)
        for sample in range(samples)
    ]


PROMPTS = [[3], [4, 5, 6], [7, 8], [9, 10, 11, 12, 13, 14]]


def greedy(model, prompt, tokens):
    """The slow way: the whole sequence through the model for every token."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_greedy_equals_the_whole_sequence_forward(engine):
    for request, done in zip(requests(PROMPTS), engine.generate(requests(PROMPTS), Sampling(0.0, 9)), strict=True):
        assert done.token_ids == greedy(engine.model, request.prompt_ids, 9)
        assert done.finish_reason == "length"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_equal_a_recompute(engine, temperature):
    asked = requests(PROMPTS, samples=3)
    for request, done in zip(asked, engine.generate(asked, Sampling(temperature, 9)), strict=True):
        ids = torch.tensor([[*request.prompt_ids, *done.token_ids]])
        with torch.no_grad():
            log_p = (engine.model(ids).logits[0] / temperature).log_softmax(-1)
        start = len(request.prompt_ids) - 1
        expected = [log_p[start + place, token].item() for place, token in enumerate(done.token_ids)]
        assert done.log_probs == pytest.approx(expected, abs=1e-4)


def test_results_do_not_depend_on_order_or_batch(engine):
    asked = requests(PROMPTS, samples=4)
    sampling = Sampling(1.0, 12, stop_ids=(1, 2, 3))
    whole = engine.generate(asked, sampling)
    backwards = engine.generate(asked[::-1], sampling)[::-1]
    engine.sequences_per_batch = 3
    small = engine.generate(asked, sampling)
    assert [c.token_ids for c in whole] == [c.token_ids for c in backwards] == [c.token_ids for c in small]
    assert len({tuple(c.token_ids) for c in whole}) > 8


def test_pitfall_15_any_stop_id_ends_a_response_and_stays_in_it(engine):
    """Rows end at different times and leave the batch; each ends at its first stop id, which is part of it."""
    asked = requests(PROMPTS, samples=8)
    stops = (11, 22, 33)
    free = engine.generate(asked, Sampling(1.0, 20))
    for stopped, full in zip(engine.generate(asked, Sampling(1.0, 20, stop_ids=stops)), free, strict=True):
        place = next((i for i, token in enumerate(full.token_ids) if token in stops), None)
        assert stopped.token_ids == (full.token_ids if place is None else full.token_ids[: place + 1])
        assert stopped.finish_reason == ("length" if place is None else "stop")
        assert len(stopped.log_probs) == len(stopped.token_ids)


def test_ignore_eos_uses_the_whole_budget(engine):
    done = engine.generate(requests(PROMPTS), Sampling(1.0, 20, stop_ids=tuple(range(50)), ignore_eos=True))
    assert [len(c.token_ids) for c in done] == [20] * 4


def test_pitfall_37_the_budget_is_cut_to_the_room(engine):
    long = [5] * 60
    done = engine.generate(requests([long, [1]]), Sampling(1.0, 10))
    assert [len(c.token_ids) for c in done] == [4, 10]


def test_finished_rows_are_handed_out_as_they_end(engine):
    seen = []
    done = engine.generate(requests(PROMPTS, 4), Sampling(1.0, 12, stop_ids=(1, 2, 3, 4)), seen.append)
    assert sorted(c.row for c in seen) == [c.row for c in done]
    assert [len(c.token_ids) for c in seen] == sorted(len(c.token_ids) for c in seen)


@pytest.mark.parametrize("prompt", [[], [1] * 64])
def test_prompts_that_cannot_be_continued(engine, prompt):
    with pytest.raises(EngineError, match="row 0: a prompt needs 1 to 63 tokens"):
        engine.generate(requests([prompt]), Sampling(1.0, 3))


def test_checksum_sees_every_weight(engine):
    before = engine.checksum()
    with torch.no_grad():
        engine.model.model.layers[1].mlp.down_proj.weight[0, 0] += 0.01
    assert engine.checksum() != before
    assert engine.expected_checksum(engine.model) is None


def test_a_bfloat16_model_has_float32_logits(engine):
    """Each prompt alone, so that the states are the same to the last bit; its own rounded logits are a control."""
    small = TransformersEngine(engine.model.bfloat16(), pad_id=0, sequences_per_batch=64, context=64)
    ours, rounded = [], []
    for request in requests(PROMPTS):
        (done,) = small.generate([request], Sampling(1.0, 1))
        ids, token = torch.tensor([request.prompt_ids]), done.token_ids[0]
        with torch.no_grad():
            state = small.model.get_decoder()(ids).last_hidden_state[0, -1].float()
            exact = (small.model.get_output_embeddings().weight.float() @ state).log_softmax(-1)[token]
            own = small.model(ids).logits[0, -1].float().log_softmax(-1)[token]
        ours.append(abs(done.log_probs[0] - float(exact)))
        rounded.append(abs(done.log_probs[0] - float(own)))
    assert max(ours) < 1e-5
    assert max(rounded) > 1e-3
