import pytest
import torch

from ppo_lightning.algorithms.value_loss import value_loss

NAN = float("nan")


def slow(prediction, old, target, clip):
    clipped = min(max(prediction, old - clip), old + clip)
    return max((prediction - target) ** 2, (clipped - target) ** 2) / 2


def test_by_hand():
    predictions, old = torch.tensor([[1.0, 2.0, -2.0]]), torch.zeros(1, 3)
    loss, metrics = value_loss(predictions, old, torch.tensor([[3.0, -1.0, 0.0]]), torch.ones(1, 3), 0.5)
    # 1 -> clipped to 0.5: max(4, 6.25) / 2; 2 -> 0.5: max(9, 2.25) / 2; -2 -> -0.5: max(4, 0.25) / 2
    assert loss[0].tolist() == [3.125, 4.5, 2.0]
    assert metrics["critic/vf_clipfrac"][0].tolist() == [1.0, 0.0, 0.0]
    assert metrics["critic/vpred_mean"][0].tolist() == [1.0, 2.0, -2.0]


def test_equals_the_slow_form():
    generator = torch.Generator().manual_seed(0)
    predictions, old, target = (torch.randn(6, 7, generator=generator, dtype=torch.float64) for _ in range(3))
    loss, _ = value_loss(predictions, old, target, torch.ones(6, 7), 0.3)
    triples = zip(*(array.flatten().tolist() for array in (predictions, old, target)), strict=True)
    assert loss.flatten().tolist() == pytest.approx([slow(*triple, 0.3) for triple in triples])


def test_gradient_is_the_error_inside_the_clip_and_zero_where_the_clip_wins():
    predictions = torch.tensor([[0.2, 1.0]], requires_grad=True)
    loss, _ = value_loss(predictions, torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]), torch.ones(1, 2), 0.5)
    loss.sum().backward()
    assert predictions.grad[0].tolist() == pytest.approx([-0.8, 0.0])


def test_pitfall_05_junk_under_the_mask():
    predictions = torch.tensor([[1.0, NAN]], requires_grad=True)
    loss, metrics = value_loss(
        predictions, torch.tensor([[0.0, NAN]]), torch.tensor([[0.0, NAN]]), torch.tensor([[1, 0]]), 0.5
    )
    loss.sum().backward()
    assert loss[0].tolist() == [0.5, 0.0]
    assert predictions.grad[0].tolist() == [1.0, 0.0]
    assert all(values[0, 1] == 0 for values in metrics.values())
