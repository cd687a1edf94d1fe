"""Balancing changes the order of rows only, within mini-batches (SPEC 3.7)."""

import itertools
import time

import numpy as np
import pytest

from ppo_lightning.errors import DataError
from ppo_lightning.parallel.balance import balance, karmarkar_karp, seqlen_statistics, workload


def lengths_of(seed, rows):
    return np.random.RandomState(seed).randint(1, 1500, size=rows)


def spread(costs, parts):
    sums = [int(costs[part].sum()) for part in parts]
    return max(sums) - min(sums)


def test_workload_of_a_row():
    # 24576 * 2 + 2 * 2 = 49156; 24576 * 1000 + 1000000 = 25576000
    assert workload(np.array([0, 2, 1000])).tolist() == [0, 49156, 25576000]


def test_workload_does_not_overflow():
    assert workload(np.array([1_000_000], dtype=np.int32)).tolist() == [24576 * 10**6 + 10**12]


def test_hand_worked_partition():
    # 8 7 | 6 5 -> differences 1 and 1; merged heaviest with lightest: {8, 5} and {7, 6}, both 13.
    assert [part.tolist() for part in karmarkar_karp(np.array([8, 7, 6, 5]), 2)] == [[0, 3], [1, 2]]


def test_partition_is_near_the_best_of_all():
    found, best, consecutive = [], [], []
    for seed in range(40):
        costs = np.random.RandomState(seed).randint(1, 100, size=8)
        halves = itertools.combinations(range(8), 4)
        best.append(min(abs(int(costs.sum()) - 2 * int(costs[list(half)].sum())) for half in halves))
        found.append(spread(costs, karmarkar_karp(costs, 2)))
        consecutive.append(spread(costs, [np.arange(4), np.arange(4, 8)]))
    assert all(one >= least for one, least in zip(found, best, strict=True))
    assert sum(found) < sum(consecutive) / 6


@pytest.mark.parametrize(("rows", "parts"), [(8, 1), (8, 8), (24, 4), (0, 3), (96, 3)])
def test_parts_are_equally_large_and_hold_every_row_once(rows, parts):
    found = karmarkar_karp(workload(lengths_of(1, rows)), parts)
    assert [len(part) for part in found] == [rows // parts] * parts
    assert sorted(np.concatenate(found).tolist()) == list(range(rows))
    sums = [int(workload(lengths_of(1, rows))[part].sum()) for part in found]
    assert sums == sorted(sums, reverse=True)


def test_equal_lengths_are_already_balanced():
    costs = np.full(12, 7)
    assert spread(costs, karmarkar_karp(costs, 3)) == 0


def test_balanced_ranks_have_nearly_the_same_work():
    lengths = np.sort(lengths_of(2, 256))  # sorted: consecutive parts are as uneven as can be
    costs = workload(lengths)
    order = balance(lengths, 8).order
    after = costs[order].reshape(8, -1).sum(axis=1)
    before = costs.reshape(8, -1).sum(axis=1)
    assert np.ptp(after) / after.mean() < 0.001
    assert np.ptp(before) / before.mean() > 1


def test_order_is_restored():
    lengths = lengths_of(3, 48)
    found = balance(lengths, 4, 16)
    assert np.array_equal(lengths[found.order][found.inverse], lengths)
    assert sorted(found.order.tolist()) == list(range(48))
    assert lengths[found.order].sum() == lengths.sum()


def minibatches_of(found, rows, ranks, minibatch):
    """Return for each mini-batch the set of rows that all ranks together work on."""
    local = found.order.reshape(ranks, rows // minibatch, minibatch // ranks)
    return [set(local[:, place].ravel().tolist()) for place in range(rows // minibatch)]


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_minibatches_do_not_depend_on_the_number_of_ranks(ranks):
    found = minibatches_of(balance(lengths_of(4, 64), ranks, 16), 64, ranks, 16)
    assert found == [set(range(start, start + 16)) for start in range(0, 64, 16)]


def test_balancing_the_whole_batch_would_change_the_minibatches():
    # The naive way: balance first, then let every rank cut its rows into mini-batches.
    lengths = lengths_of(4, 64)
    assert minibatches_of(balance(lengths, 2), 64, 2, 16) != minibatches_of(balance(lengths, 4), 64, 4, 16)


def test_load_over_all_minibatches_is_shared_too():
    # One heavy row per mini-batch of two: always giving it to the same rank would load that rank with all of them.
    lengths = np.array([100, 1] * 8)
    rows = balance(lengths, 2, 2).order.reshape(2, -1)
    assert lengths[rows].sum(axis=1).tolist() == [404, 404]


@pytest.mark.parametrize(("rows", "ranks", "minibatch"), [(10, 3, None), (10, 2, 4), (12, 4, 6), (12, 0, 6)])
def test_rows_that_do_not_divide(rows, ranks, minibatch):
    with pytest.raises(DataError, match=r"update\.sequences_per_minibatch"):
        balance(lengths_of(5, rows), ranks, minibatch)


def test_empty_batch():
    assert balance(np.zeros(0, dtype=np.int64), 4).order.tolist() == []


def test_statistics():
    # Rows 1 2 | 3 10: 3 and 13 tokens. Balanced {10, 1} and {3, 2}: 11 and 5; mean (3 + 13) / 2.
    assert seqlen_statistics(np.array([3, 13]), np.array([11, 5])) == {
        "global_seqlen/min": 3.0,
        "global_seqlen/max": 13.0,
        "global_seqlen/minmax_diff": 10.0,
        "global_seqlen/balanced_min": 5.0,
        "global_seqlen/balanced_max": 11.0,
        "global_seqlen/mean": 8.0,
    }


def test_large_batches_take_milliseconds():
    lengths = lengths_of(6, 4096)
    balance(lengths, 8)
    start = time.process_time()
    balance(lengths, 8)
    assert time.process_time() - start < 0.25
