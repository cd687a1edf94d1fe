import numpy as np
import pytest
import torch

from ppo_lightning.algorithms.groups import compare, group_ids, group_largest, group_total


def test_ids_follow_first_appearance():
    uid = np.array(["b", "a", "b", "c", "a"], dtype=object)
    assert group_ids(uid).tolist() == [0, 1, 0, 2, 1]
    assert group_ids([]).tolist() == []


def test_pitfall_26_groups_go_by_uid_and_not_by_prompt():
    prompts = ["2 + 2 = ?"] * 4
    uid = np.array(["draw-0", "draw-0", "draw-1", "draw-1"], dtype=object)
    groups = compare(torch.tensor([1.0, 0.0, 1.0, 1.0]).double(), group_ids(uid))
    assert groups.count.tolist() == [2, 2]
    assert groups.centred().tolist() == [0.5, -0.5, 0.0, 0.0]
    assert group_ids(prompts).max() == 0, "the naive way: one group of four"


def test_hand_worked():
    groups = compare(torch.tensor([1.0, 5.0, 3.0, 7.0, 2.0]).double(), torch.tensor([0, 1, 0, 1, 2]))
    assert groups.count.tolist() == [2, 2, 1]
    assert groups.mean.tolist() == [2, 6, 2]
    assert groups.largest.tolist() == [3, 7, 2]
    assert groups.signal.tolist() == [True, True, False]
    assert groups.centred().tolist() == [-1, -1, 1, 1, 0]
    # sample standard deviation of two values one below and one above their mean: sqrt((1 + 1) / 1)
    assert groups.std().tolist() == pytest.approx([2**0.5, 2**0.5, 0])
    assert groups.lone().tolist() == [False, False, False, False, True]


@pytest.mark.parametrize("size", range(1, 17))
def test_equals_slow_statistics(size):
    rng = np.random.RandomState(size)
    ids = rng.permutation(np.repeat(np.arange(5), size))
    scores = rng.randn(len(ids)).astype(np.float32).astype(np.float64)
    groups = compare(torch.from_numpy(scores), torch.from_numpy(ids))
    for number in range(5):
        mine = [score for score, owner in zip(scores, ids, strict=True) if owner == number]
        assert groups.count[number] == size
        assert groups.mean[number].item() == pytest.approx(sum(mine) / size, abs=1e-14)
        assert groups.largest[number] == max(mine)
        assert groups.signal[number] == (max(mine) != min(mine))
        std = np.std(mine, ddof=1) if size > 1 else 0.0
        assert groups.std()[number].item() == pytest.approx(std, abs=1e-14)


@pytest.mark.parametrize("score", [0.7, 0.1, 1 / 3, -2.3, 1e8])
def test_pitfall_25_equal_scores_are_centred_to_exactly_zero(score):
    for size in range(2, 17):
        groups = compare(torch.full((size,), score, dtype=torch.float64), torch.zeros(size, dtype=torch.int64))
        assert not groups.signal.any()
        assert not groups.centred().any()
        assert not groups.std().any()


def test_pitfall_25_the_naive_way_leaves_a_residue():
    scores = torch.full((16,), 0.7)
    assert ((scores - scores.mean()) / (scores.std() + 1e-6)).abs().max() > 0.05


def test_no_rows():
    groups = compare(torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64))
    assert groups.count.tolist() == []
    assert groups.centred().tolist() == []


def test_sums_keep_further_axes_and_missing_groups():
    values = torch.arange(6.0).view(3, 2)
    assert group_total(3, torch.tensor([2, 0, 2]), values).tolist() == [[2, 3], [0, 0], [4, 6]]
    assert group_largest(2, torch.tensor([0]), torch.tensor([1.0])).tolist() == [1.0, -torch.inf]
