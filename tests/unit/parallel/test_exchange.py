import numpy as np
import pytest
import torch

from ppo_lightning.parallel.balance import Layout, balance, seqlen_statistics, targets
from ppo_lightning.parallel.exchange import exchange
from ppo_lightning.parallel.ranks import Ranks
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto


class Together(Ranks):
    """Ranks of one process: what the others would send is there from the start."""

    def others(self, sent):
        object.__setattr__(self, "sent", sent)
        return self

    def gather(self, item):
        self.sent[self.rank] = item
        return self.sent


def rows(numbers, **columns):
    tensors = {"global_row": torch.tensor(numbers, dtype=torch.int64), "value": torch.tensor(numbers) * 10}
    return DataProto.from_dict(tensors, {name: as_column(values) for name, values in columns.items()}, {"step": 1})


def both(batches, owners, wanted, sources=None):
    """Exchange between two ranks of one process and return what each has afterwards."""
    owners, wanted = np.array(owners), np.array(wanted)
    sent = [None, None]
    for rank in (0, 1):  # the first pass only notes what is sent
        try:
            exchange(batches[rank], Together(rank, 2).others(sent), owners, wanted, sources)
        except TypeError:
            continue
    return [exchange(batches[rank], Together(rank, 2).others(sent), owners, wanted, sources) for rank in (0, 1)]


def test_rows_go_where_they_belong_and_lie_in_their_order():
    first, second = both([rows([0, 2]), rows([1, 3])], [0, 1, 0, 1], [1, 0, 0, 1])
    assert first.batch["global_row"].tolist() == [1, 2]
    assert first.batch["value"].tolist() == [10, 20]
    assert second.batch["value"].tolist() == [0, 30]
    assert first.meta_info == {"step": 1}


def test_columns_that_one_rank_lacks_are_absent_in_its_rows():
    left, right = rows([0, 1], pred=["a", "b"]), rows([2, 3], long=[7, 8])
    first, second = both([left, right], [0, 0, 1, 1], [0, 1, 0, 1])
    assert first.non_tensor_batch["pred"].tolist() == ["a", None]
    assert second.non_tensor_batch["long"].tolist() == [None, 8]


def test_rows_may_be_taken_twice_or_not_at_all_and_are_numbered_anew():
    first, second = both([rows([0, 1]), rows([2, 3])], [0, 0, 1, 1], [0, 1, 0, 1], np.array([3, 3, 0, 2]))
    assert first.batch["value"].tolist() == [30, 0]
    assert second.batch["value"].tolist() == [30, 20]
    assert first.batch["global_row"].tolist() == [0, 2]


def test_a_rank_may_begin_with_nothing():
    first, second = both([rows([0, 1, 2, 3]), rows([])], [0, 0, 0, 0], [0, 1, 1, 0])
    assert first.batch["value"].tolist() == [0, 30]
    assert second.batch["value"].tolist() == [10, 20]


def test_nothing_is_sent_where_nothing_moves():
    class Silent(Ranks):
        def gather(self, item):
            raise AssertionError("no collective is needed")

    kept = exchange(rows([0, 2]), Silent(0, 2), np.array([0, 1, 0, 1]), np.array([0, 1, 0, 1]))
    assert kept.batch["value"].tolist() == [0, 20]


def lengths(seed, size):
    return np.random.default_rng(seed).integers(10, 500, size)


@pytest.mark.parametrize("ranks", [2, 4])
def test_groups_stay_whole_and_every_rank_has_equally_many_rows_of_every_minibatch(ranks):
    tokens = lengths(1, 96)
    found = targets(tokens, ranks, 48, 3, balanced=True).reshape(-1, 3)
    assert (found == found[:, :1]).all()
    for half in (found[:16], found[16:]):
        assert np.bincount(half[:, 0]).tolist() == [16 // ranks] * ranks


def test_balancing_groups_beats_taking_turns():
    tokens = np.sort(lengths(2, 64))
    loads = [np.bincount(targets(tokens, 4, 64, 2, balanced=how), tokens) for how in (False, True)]
    assert np.ptp(loads[1]) < 0.1 * np.ptp(loads[0])
    assert loads[0].sum() == loads[1].sum() == tokens.sum()


def test_one_row_per_group_is_the_balance_of_rows():
    tokens = lengths(3, 32)
    assert balance(tokens, 4, 16, together=1).order.tolist() == balance(tokens, 4, 16).order.tolist()


def test_turns_are_by_whole_groups():
    assert targets(np.ones(8), 2, 8, 2, balanced=False).tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


def test_numbers_of_the_busiest_and_the_idlest_rank():
    layout = Layout(np.array([0, 0, 1, 1]), np.array([1, 2, 5, 8]))
    after = np.array([0, 1, 1, 0])
    found = seqlen_statistics(*(np.bincount(owners, layout.tokens) for owners in (layout.owners, after)))
    assert found == {
        "global_seqlen/min": 3.0,
        "global_seqlen/max": 13.0,
        "global_seqlen/minmax_diff": 10.0,
        "global_seqlen/balanced_min": 7.0,
        "global_seqlen/balanced_max": 9.0,
        "global_seqlen/mean": 8.0,
    }
