import math

import pytest
import torch

from ppo_lightning.algorithms.masked import (
    clear_masked,
    keep_bits,
    kept_or_zero,
    masked_mean,
    masked_sum,
    masked_var,
    row_blocks,
    token_counts,
    whiten,
)


def random_batch(seed: int, rows: int = 5, width: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, width, generator=generator)
    mask = torch.rand(rows, width, generator=generator) < 0.6
    mask[0, :2] = True
    return values, mask


def slow_moments(values, mask) -> tuple[float, float]:
    kept = [
        v for row, keep in zip(values.tolist(), mask.tolist(), strict=True) for v, k in zip(row, keep, strict=True) if k
    ]
    mean = math.fsum(kept) / len(kept)
    return mean, math.fsum((v - mean) ** 2 for v in kept) / (len(kept) - 1)


def test_hand_worked():
    values = torch.tensor([[1.0, 2.0, 9.0], [6.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert masked_sum(values, mask) == 9.0
    assert masked_sum(values, mask, dim=1).tolist() == [3.0, 6.0]
    assert masked_mean(values, mask) == 3.0
    assert masked_mean(values, mask, dim=1).tolist() == [1.5, 6.0]
    # ((1-3)^2 + (2-3)^2 + (6-3)^2) / 2 = 7
    assert masked_var(values, mask) == 7.0
    expected = [[-2 / math.sqrt(7), -1 / math.sqrt(7), 0.0], [3 / math.sqrt(7), 0.0, 0.0]]
    torch.testing.assert_close(whiten(values, mask), torch.tensor(expected))


@pytest.mark.parametrize("seed", range(20))
def test_equals_slow_moments(seed):
    values, mask = random_batch(seed)
    mean, variance = slow_moments(values, mask)
    assert masked_mean(values, mask).item() == pytest.approx(mean, abs=1e-6)
    assert masked_var(values, mask).item() == pytest.approx(variance, rel=1e-6)
    expected = torch.where(mask, (values - mean) / math.sqrt(variance + 1e-8), 0.0)
    torch.testing.assert_close(whiten(values, mask), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(whiten(values, mask.long()), expected, atol=1e-6, rtol=0)


def test_a_large_mean_does_not_drown_the_spread():
    values, mask = torch.tensor([[1000.0, 1000.25, 1000.5, 1000.75]]), torch.ones(1, 4)
    # spread 0.25 * [-1.5, -0.5, 0.5, 1.5], variance 0.25^2 * 5 / 3
    assert masked_var(values, mask).item() == pytest.approx(0.0625 * 5 / 3, rel=1e-6)
    one_pass = (values.square().mean() - values.mean().square()) * 4 / 3
    assert abs(one_pass.item() - 0.0625 * 5 / 3) > 1e-3, "the naive way"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_pitfall_05_nothing_under_the_mask_leaks(bad):
    values, mask = random_batch(0)
    dirty = torch.where(mask, values, bad)
    assert masked_sum(dirty, mask) == masked_sum(values, mask)
    assert masked_mean(dirty, mask) == masked_mean(values, mask)
    assert masked_var(dirty, mask) == masked_var(values, mask)
    assert torch.equal(whiten(dirty, mask), whiten(values, mask))
    assert (dirty * mask).sum().isnan(), "the naive way"


def test_pitfall_05_nothing_under_the_mask_leaks_into_gradients():
    values, mask = random_batch(1)
    leaf = torch.where(mask, values, -1.0).requires_grad_()
    masked_mean(leaf.sqrt(), leaf.detach() > 0).backward()
    assert torch.isfinite(leaf.grad[leaf > 0]).all()
    logs = torch.tensor([0.0, 1.0], requires_grad=True)
    masked_sum(logs.log(), torch.tensor([0, 1])).backward()
    assert logs.grad[1] == 1.0


def test_pitfall_04_a_mean_of_nothing_is_zero():
    values = torch.full((2, 3), math.nan)
    mask = torch.zeros(2, 3)
    assert masked_mean(values, mask) == 0.0
    assert masked_mean(values, mask, dim=1).tolist() == [0.0, 0.0]
    assert masked_var(values, mask) == 0.0
    assert not whiten(values, mask).any()


def test_pitfall_23_one_valid_token_whitens_to_zero():
    values, mask = torch.tensor([[5.0, 7.0]]), torch.tensor([[1, 0]])
    assert masked_var(values, mask) == 0.0
    assert whiten(values, mask).tolist() == [[0.0, 0.0]]
    squares, count = torch.tensor(0.0), torch.tensor(1.0)
    assert (squares / (count - 1)).isnan(), "the naive way"


@pytest.mark.parametrize("value", [0.7, 0.1, -1.3, 1e6])
def test_equal_values_whiten_to_exactly_zero(value):
    for count in range(2, 40):
        assert not whiten(torch.full((1, count), value), torch.ones(1, count)).any()


def test_the_naive_way_whitens_equal_values_to_a_residue():
    values = torch.full((9,), 0.7)
    naive = (values - values.sum() / 9) * torch.rsqrt(torch.tensor(1e-8))
    assert naive.abs().max() > 1e-4


@pytest.mark.parametrize("seed", range(5))
def test_pitfall_02_whitening_over_ranks_equals_whitening_the_whole(seed, ranks):
    values, mask = random_batch(seed, rows=6)
    mask[5] = False
    whole = whiten(values, mask)
    for cut in ([2, 4], [1, 5], [6]):
        parts = zip(values.split(cut), mask.split(cut), strict=True)
        results = ranks([lambda reduce, v=v, m=m: whiten(v, m, reduce) for v, m in parts])
        torch.testing.assert_close(torch.cat(results), whole, atol=1e-6, rtol=0)
    alone = torch.cat([whiten(v, m) for v, m in zip(values.split([2, 4]), mask.split([2, 4]), strict=True)])
    assert (alone - whole).abs().max() > 1e-2, "each rank by its own moments: the naive way"


def test_mean_over_ranks_uses_global_counts():
    # Rank 0: two values of 1; rank 1: eight of 0. The mean is 0.2, not 0.5.
    other = torch.tensor([0.0, 8.0], dtype=torch.float64)
    mean = masked_mean(torch.ones(1, 2), torch.ones(1, 2), all_reduce=lambda mine: mine + other)
    assert mean.item() == pytest.approx(0.2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.bool, torch.int32, torch.int64, torch.float32])
def test_bits_clear_what_is_masked_and_nothing_else(dtype, kind):
    values = torch.tensor([[-1.5, math.nan, -0.25], [math.inf, 2.0, -math.inf]], dtype=dtype)
    mask = torch.tensor([[1, 0, 1], [0, 1, 0]]).to(kind)
    bits, before = keep_bits(mask, dtype), mask.clone()
    expected = torch.tensor([[-1.5, 0.0, -0.25], [0.0, 2.0, 0.0]], dtype=dtype)
    assert torch.equal(kept_or_zero(values, bits), expected)
    assert values[0, 1].isnan(), "the values are left alone"
    assert torch.equal(clear_masked(values, bits), expected)
    assert torch.equal(values, expected)
    assert token_counts(bits).tolist() == token_counts(mask).tolist() == [2.0, 1.0]
    assert torch.equal(mask, before)
    assert not torch.equal(torch.tensor(math.nan) * 0, torch.tensor(0.0)), "the naive way"


def test_blocks_are_all_rows_once():
    assert [(block.start, block.stop) for block in row_blocks(torch.empty(5, 2**16))] == [(0, 2), (2, 4), (4, 6)]
    assert [(block.start, block.stop) for block in row_blocks(torch.empty(3, 2**18))] == [(0, 1), (1, 2), (2, 3)]
    assert list(row_blocks(torch.empty(0, 4))) == []
    assert sum(len(torch.empty(3, 0)[block]) for block in row_blocks(torch.empty(3, 0))) == 3


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int64, torch.bfloat16, torch.float32])
def test_counts_do_not_depend_on_the_type_of_the_mask(dtype):
    """A row of 300 tokens overflows a byte, and bfloat16 has no 299."""
    mask = (torch.arange(300) < torch.tensor([[300], [299], [0]])).to(dtype)
    assert token_counts(mask).tolist() == [300.0, 299.0, 0.0]
    assert token_counts(keep_bits(mask)).tolist() == [300.0, 299.0, 0.0]
