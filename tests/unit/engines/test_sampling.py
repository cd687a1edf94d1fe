import numpy as np
import pytest
import torch

from ppo_lightning.engines.base import Sampling
from ppo_lightning.engines.sampling import draw, stream, uniforms


def test_a_stream_depends_on_every_part_of_its_key():
    keys = [(1, 0, 2, 3, 4), (1, 0, 2, 3, 5), (1, 0, 2, 4, 4), (1, 1, 2, 3, 4), (2, 0, 2, 3, 4), (0, 1, 2, 3, 4)]
    assert len(set(stream(keys).tolist())) == len(keys)
    assert stream(keys[:1])[0] == stream(keys)[0]


def test_uniforms_look_uniform_and_independent():
    streams = stream([(7, row) for row in range(200)])
    numbers = np.stack([uniforms(streams, np.full(200, position)) for position in range(200)])
    assert 0 <= numbers.min() < 0.001
    assert 0.999 < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.02


def test_draws_follow_the_distribution():
    logits = torch.tensor([2.0, 1.0, 0.0]).repeat(20000, 1)
    uniform = torch.from_numpy(uniforms(stream([(1, row) for row in range(20000)]), np.zeros(20000)))
    token, _ = draw(logits, Sampling(0.5, 1), uniform)
    shares = torch.bincount(token, minlength=3) / 20000
    assert torch.allclose(shares, torch.softmax(logits[0] / 0.5, -1), atol=0.01)


def test_pitfall_31_log_probs_are_at_the_sampling_temperature():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    for uniform, expected in ((0.0, 0), (0.9, 1), (0.999, 2)):
        token, log_prob = draw(logits, Sampling(0.5, 1), torch.tensor([uniform]))
        assert token.item() == expected
        assert log_prob.item() == pytest.approx(torch.log_softmax(logits / 0.5, -1)[0, expected].item(), abs=1e-6)
        assert log_prob.item() != pytest.approx(torch.log_softmax(logits, -1)[0, expected].item(), abs=1e-3)


def test_greedy():
    token, log_prob = draw(torch.tensor([[0.0, 3.0, 1.0]]), Sampling(0.0, 1), torch.tensor([0.99]))
    assert token.item() == 1
    assert log_prob.item() == pytest.approx(torch.log_softmax(torch.tensor([0.0, 3.0, 1.0]), -1)[1].item())


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(1.0, 1, top_k=2), {0, 1}),
        (Sampling(1.0, 1, top_p=0.6), {0}),
        (Sampling(1.0, 1, top_p=0.7), {0, 1}),
        (Sampling(1.0, 1, min_p=0.3), {0, 1}),
    ],
)
def test_truncation_keeps_and_renormalises(sampling, kept):
    """Probabilities 0.665, 0.245, 0.090."""
    logits = torch.tensor([2.0, 1.0, 0.0]).repeat(1000, 1)
    token, log_prob = draw(logits, sampling, torch.linspace(0, 0.9999, 1000))
    assert set(token.tolist()) == kept
    total = sum(dict(zip(token.tolist(), log_prob.exp().tolist(), strict=True)).values())
    assert total == pytest.approx(1.0, abs=1e-5)


def test_the_drawn_token_inverts_the_cumulative_distribution():
    """Against float64 sums over the whole vocabulary (1,000 tokens: four blocks, the last one short)."""
    torch.manual_seed(0)
    logits = torch.randn(500, 1000) * 3
    logits[:, ::3] = -torch.inf
    uniform = torch.rand(500, dtype=torch.float64)
    uniform[:3] = torch.tensor([0.0, 1 - 2.0**-53, 0.5])
    token, log_prob = draw(logits, Sampling(1.0, 1), uniform)
    probs = torch.softmax(logits.double(), -1)
    end = probs.cumsum(-1).gather(-1, token[:, None]).squeeze(-1)
    mass = probs.gather(-1, token[:, None]).squeeze(-1)
    assert bool((mass > 0).all())
    assert bool((end - mass <= uniform + 1e-6).all())
    assert bool((uniform <= end + 1e-6).all())
    assert torch.allclose(log_prob.double(), mass.log(), atol=1e-5)


def test_rounding_at_the_end_of_a_block_draws_no_impossible_token():
    """The largest uniform: float32 sums of a block may lie above the float64 sum of its tokens."""
    torch.manual_seed(0)
    logits = torch.randn(2000, 256)
    logits[:, 200:] = -torch.inf
    token, log_prob = draw(logits, Sampling(1.0, 1), torch.full((2000,), 1 - 2.0**-53, dtype=torch.float64))
    assert int(token.max()) < 200
    assert bool(log_prob.isfinite().all())
