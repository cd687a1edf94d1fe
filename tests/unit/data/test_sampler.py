import pytest

from ppo_lightning.data.sampler import PromptSampler


def drawn(**options):
    return list(PromptSampler(rows=10, per_draw=3, draws=8, seed=1, shuffle=True, **options))


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
    assert len(PromptSampler(rows=10, per_draw=3, draws=8, seed=1, shuffle=True, start=start)) == 8 - start


def test_file_order_without_shuffle():
    assert list(PromptSampler(rows=5, per_draw=2, draws=3, seed=1, shuffle=False)) == [[0, 1], [2, 3], [0, 1]]


def test_ranks_share_a_draw():
    whole = list(PromptSampler(rows=12, per_draw=4, draws=3, seed=1, shuffle=True))
    halves = [list(PromptSampler(rows=12, per_draw=4, draws=3, seed=1, shuffle=True, rank=r, ranks=2)) for r in (0, 1)]
    assert [a + b for a, b in zip(*halves, strict=True)] == whole
