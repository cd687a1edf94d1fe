import math

import pytest
import torch

from ppo_lightning.algorithms.aggregation import MODES, LossCounts, aggregate, count
from ppo_lightning.errors import ConfigError

NAN = float("nan")


def slow(loss, mask, mode, horizon):
    """Return the loss of a whole mini-batch, token by token."""
    rows = [[value for value, kept in zip(*pair, strict=True) if kept] for pair in zip(loss, mask, strict=True)]
    rows = [row for row in rows if row]
    tokens = [value for row in rows for value in row]
    if mode == "token-sum":
        return sum(tokens)
    if mode == "token-mean":
        return sum(tokens) / len(tokens)
    per_row = [sum(row) / (len(row) if mode == "seq-mean-token-mean" else 1) for row in rows]
    return sum(per_row) / len(rows) / (horizon if mode == "seq-mean-token-sum-norm" else 1)


def random_batch(seed, rows=7, width=5):
    generator = torch.Generator().manual_seed(seed)
    loss = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=generator) < 0.6
    mask[seed % rows] = False
    return loss, mask.long()


def counts_of(mask, dp_size=1):
    return LossCounts(*count(mask).tolist(), dp_size)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 10 / 4),  # 1 + 2 + 3 + 4 over four tokens
        ("token-sum", 10.0),
        ("seq-mean-token-sum", 10 / 2),  # (3 + 7) over two rows; the third has no token
        ("seq-mean-token-sum-norm", 10 / 2 / 8),
        ("seq-mean-token-mean", (3 / 2 + 7 / 2) / 2),
    ],
)
def test_by_hand(mode, expected):
    loss = torch.tensor([[1.0, 2.0, 9.0], [3.0, 9.0, 4.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0]])
    assert count(mask).tolist() == [4.0, 2.0]
    assert aggregate(loss, mask, mode, LossCounts(4, 2), horizon=8).item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
def test_equals_the_slow_form(mode):
    for seed in range(20):
        loss, mask = random_batch(seed)
        fast = aggregate(loss, mask, mode, counts_of(mask), horizon=11)
        assert fast.item() == pytest.approx(slow(loss.tolist(), mask.tolist(), mode, 11), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_masks_of_any_type(dtype):
    loss, mask = random_batch(0)
    whole = aggregate(loss, mask, "token-mean", counts_of(mask))
    assert aggregate(loss, mask.to(dtype), "token-mean", counts_of(mask)).item() == whole.item()


def test_one_token():
    assert aggregate(torch.tensor([[5.0]]), torch.ones(1, 1), "seq-mean-token-mean", LossCounts(1, 1)).item() == 5.0


@pytest.mark.parametrize("mode", MODES)
def test_gradient(mode):
    loss, mask = random_batch(3, rows=3, width=4)
    counts = counts_of(mask, dp_size=2)
    assert torch.autograd.gradcheck(lambda x: aggregate(x, mask, mode, counts, 7), loss.requires_grad_())


def test_unknown_mode_names_the_key_and_the_choices():
    with pytest.raises(ConfigError, match=r"update\.loss_agg_mode must be one of token-mean.*got 'mean'"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "mean", LossCounts(1, 1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [[4], [2, 2], [1, 1, 1, 1], [3, 1]])
def test_pitfall_01_micro_batches_do_not_change_the_gradient(mode, sizes):
    loss = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    mask = torch.arange(6)[None] < torch.tensor([1, 2, 3, 6])[:, None]
    counts = counts_of(mask)
    whole = aggregate(loss, mask, mode, counts, 6)
    (expected,) = torch.autograd.grad(whole, loss)
    parts = zip(loss.split(sizes), mask.split(sizes), strict=True)
    total = sum(aggregate(part, kept, mode, counts, 6) for part, kept in parts)
    (gradient,) = torch.autograd.grad(total, loss)
    assert total.item() == pytest.approx(whole.item(), abs=1e-12)
    assert torch.allclose(gradient, expected, atol=1e-12)


def test_pitfall_01_control_local_counts_change_the_gradient():
    loss = torch.arange(24, dtype=torch.float64).reshape(4, 6)
    mask = torch.arange(6)[None] < torch.tensor([1, 2, 3, 6])[:, None]
    whole = aggregate(loss, mask, "token-mean", counts_of(mask)).item()
    rows = zip(loss.split(1), mask.split(1), strict=True)
    naive = [aggregate(row, kept, "token-mean", counts_of(kept)).item() for row, kept in rows]
    assert abs(sum(naive) / 4 - whole) > 0.1


def test_pitfall_02_ranks_share_one_denominator():
    ranks = [(torch.ones(1, 8), torch.arange(8)[None] < 2), (torch.zeros(1, 8), torch.ones(1, 8))]
    counts = LossCounts(10, 2, dp_size=2)
    values = [aggregate(loss, mask, "token-mean", counts).item() for loss, mask in ranks]
    assert sum(values) / 2 == pytest.approx(0.2)
    naive = [aggregate(loss, mask, "token-mean", counts_of(mask)).item() for loss, mask in ranks]
    assert sum(naive) / 2 == 0.5


@pytest.mark.parametrize("mode", MODES)
def test_pitfall_02_any_number_of_ranks(mode):
    loss, mask = random_batch(5, rows=12)
    whole = aggregate(loss, mask, mode, counts_of(mask), 9).item()
    for size in (1, 2, 3, 4):
        counts = counts_of(mask, dp_size=size)
        ranks = [aggregate(loss[rank::size], mask[rank::size], mode, counts, 9).item() for rank in range(size)]
        assert sum(ranks) / size == pytest.approx(whole, rel=1e-12)


def test_pitfall_03_counts_after_all_masking():
    loss = torch.tensor([[1.0, 1.0], [5.0, 5.0]])
    sampled, trained = torch.ones(2, 2), torch.tensor([[1, 1], [0, 0]])
    assert aggregate(loss, trained, "token-mean", counts_of(trained)).item() == 1.0
    assert aggregate(loss, trained, "token-mean", counts_of(sampled)).item() == 0.5  # the fault


@pytest.mark.parametrize("mode", MODES)
def test_pitfall_04_rows_without_tokens_count_nowhere(mode):
    loss, mask = random_batch(2)
    full = mask.any(-1)
    with_empty = aggregate(loss, mask, mode, counts_of(mask), 5)
    without = aggregate(loss[full], mask[full], mode, counts_of(mask[full]), 5)
    assert not full.all()
    assert with_empty.item() == pytest.approx(without.item(), rel=1e-12)


def test_pitfall_04_control_counting_every_row_shrinks_the_mean():
    loss, mask = torch.ones(2, 2), torch.tensor([[1, 1], [0, 0]])
    assert aggregate(loss, mask, "seq-mean-token-mean", counts_of(mask)).item() == 1.0
    assert aggregate(loss, mask, "seq-mean-token-mean", LossCounts(2, len(loss))).item() == 0.5


@pytest.mark.parametrize("mode", MODES)
def test_pitfall_04_an_empty_batch_is_a_zero_with_a_graph(mode):
    weight = torch.tensor(2.0, requires_grad=True)
    loss = aggregate(weight * torch.ones(2, 3), torch.zeros(2, 3), mode, LossCounts(0, 0), 3)
    loss.backward()
    assert loss.item() == 0.0
    assert weight.grad.item() == 0.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("junk", [NAN, math.inf, -math.inf])
def test_pitfall_05_junk_under_the_mask(mode, junk):
    clean, mask = random_batch(4)
    dirty = torch.where(mask.bool(), clean, junk).requires_grad_()
    value = aggregate(dirty, mask, mode, counts_of(mask), 5)
    value.backward()
    assert value.item() == aggregate(clean, mask, mode, counts_of(mask), 5).item()
    assert dirty.grad[mask == 0].abs().sum() == 0
    assert dirty.grad.isfinite().all()


def test_pitfall_05_control_multiplying_by_the_mask_leaks():
    loss, mask = torch.tensor([[1.0, NAN]]), torch.tensor([[1.0, 0.0]])
    assert torch.isnan((loss * mask).sum())


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_pitfall_06_a_loss_of_one_half_is_logged_as_one_half(mode, micro, ranks):
    loss = torch.full((8, 3), 0.5)
    mask = torch.arange(3)[None] < torch.tensor([1, 2, 3, 3, 1, 1, 2, 3])[:, None]
    counts = counts_of(mask, ranks)
    logged = 0.0
    for rank in range(ranks):  # SUM over micro-batches, MEAN over ranks
        parts = zip(loss[rank::ranks].split(micro), mask[rank::ranks].split(micro), strict=True)
        logged += sum(aggregate(part, kept, mode, counts).item() for part, kept in parts) / ranks
    assert logged == pytest.approx(0.5)


def test_pitfall_06_control_own_counts_grow_with_the_number_of_micro_batches():
    loss, mask = torch.full((8, 3), 0.5), torch.ones(8, 3)
    logged = [
        sum(aggregate(part, kept, "token-mean", counts_of(kept)).item() for part, kept in zip(*parts, strict=True))
        for parts in ((loss.split(size), mask.split(size)) for size in (8, 4, 2))
    ]
    assert logged == [0.5, 1.0, 2.0]
