import pytest

from ppo_lightning.data.sampler import PromptSampler, in_order, shuffled
from ppo_lightning.errors import DataError


def sampler(rows=10, per_draw=3, draws=8, order=None, **options):
    return PromptSampler(rows, per_draw, draws, order or shuffled(rows, seed=1), **options)


def drawn(**options):
    return list(sampler(**options))


def test_an_epoch_holds_each_row_at_most_once():
    draws = drawn()
    for epoch in (draws[:3], draws[3:6]):
        rows = [row for draw in epoch for row in draw]
        assert len(rows) == len(set(rows)) == 9


def test_epochs_differ_and_runs_repeat():
    assert drawn()[:3] != drawn()[3:6]
    assert drawn() == drawn()


@pytest.mark.parametrize("start", range(9))
def test_any_stop_point_goes_on_as_the_straight_run(start):
    assert drawn(start=start) == drawn()[start:]
    assert len(sampler(start=start)) == 8 - start


def test_file_order_without_shuffle():
    assert drawn(rows=5, per_draw=2, draws=3, order=in_order(5)) == [[0, 1], [2, 3], [0, 1]]


def test_ranks_share_a_draw():
    whole = drawn(rows=12, per_draw=4, draws=3)
    halves = [drawn(rows=12, per_draw=4, draws=3, rank=rank, ranks=2) for rank in (0, 1)]
    assert [[row for pair in zip(a, b, strict=True) for row in pair] for a, b in zip(*halves, strict=True)] == whole


def test_steps_that_take_several_draws_go_on_behind_them():
    """Three steps that take 1, 3 and 1 draws: they begin with draws 0, 1 and 4."""
    consumed = [0]
    found = []
    for taken, rows in zip((1, 3, 1), sampler(draws=3, position=lambda: consumed[0]), strict=True):
        found.append(rows)
        consumed[0] += taken
    everything = drawn()
    assert found == [everything[0], everything[1], everything[4]]


def test_an_order_may_leave_out_and_repeat_rows():
    assert drawn(rows=4, per_draw=2, draws=3, order=lambda epoch: [epoch, 3, epoch, 3]) == [[0, 3], [0, 3], [1, 3]]


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 1, 2, 4], [0, 1, 2, -1]])
def test_an_order_that_is_too_short_or_points_outside_is_an_error(order):
    with pytest.raises(DataError, match=r"data.order must give at least 4 positions from 0 to 3 for epoch 0"):
        drawn(rows=4, per_draw=2, draws=2, order=lambda epoch: order)
