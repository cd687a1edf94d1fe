import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from ppo_lightning.engines.base import Request, Sampling
from ppo_lightning.engines.kv_cache import PlainCache, Responses, SharedCache, cache_for
from ppo_lightning.engines.transformers import TransformersEngine

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize("owner", [[0, 0, 1, 1], [0, 0, 0, 2, 4, 4], [3]], ids=["full", "uneven", "one"])
def test_responses_come_back_in_their_order(owner):
    responses = Responses(torch.tensor(owner))
    rows = torch.randn(len(owner), 2, 3, 5)
    wide = responses.by_prompt(rows)
    assert wide.shape == (len(set(owner)), 2, responses.most * 3, 5)
    assert torch.equal(responses.by_response(wide), rows)
    assert responses.prompts.tolist() == sorted(set(owner))
    assert torch.equal(wide[0, :, :3], rows[0])


def test_both_caches_give_the_same_responses(monkeypatch):
    """Prompts of unlike lengths with unlike numbers of responses that end at unlike times."""
    torch.manual_seed(0)
    engine = TransformersEngine(LlamaForCausalLM(LlamaConfig(**SIZES)), pad_id=0, sequences_per_batch=64, context=64)
    assert engine.cache is SharedCache
    prompts = [(3,), (4, 5, 6), (4, 5, 6), (4, 5, 6), (7, 8), (7, 8), (9, 10, 11, 12, 13, 14)]
    asked = [Request(row, prompt, (1, 0, 1, row, 0)) for row, prompt in enumerate(prompts)]
    sampling = Sampling(1.0, 20, stop_ids=tuple(range(10)))
    shared = engine.generate(asked, sampling)
    monkeypatch.setattr(engine, "cache", PlainCache)
    plain = engine.generate(asked, sampling)
    assert [done.token_ids for done in shared] == [done.token_ids for done in plain]
    assert len({len(done.token_ids) for done in shared}) > 3
    for one, other in zip(shared, plain, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)


def test_a_model_that_needs_its_own_cache_keeps_it(monkeypatch):
    """Sliding windows are known by the config; an attention that does not ask the cache by its results."""
    assert cache_for(MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4))) is PlainCache
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    assert cache_for(model) is PlainCache  # transformers' attention, which does not know of shared prompts
