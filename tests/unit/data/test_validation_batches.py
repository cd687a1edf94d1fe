import pytest

from ppo_lightning.data.datamodule import collate, validation_batches


@pytest.mark.parametrize(("rows", "ranks", "size"), [(5, 2, 2), (1, 2, 4), (7, 3, 2), (8, 4, 1), (3, 8, 256)])
def test_pitfall_56_every_row_once_in_equally_many_batches(rows, ranks, size):
    """A sampler that pads would repeat rows, one that drops would lose them."""
    parts = [validation_batches(rows, rank, ranks, size) for rank in range(ranks)]
    assert sorted(row for part in parts for batch in part for row in batch) == list(range(rows))
    assert len({len(part) for part in parts}) == 1
    assert all(len(batch) <= size for part in parts for batch in part)


def test_an_empty_batch_can_be_made():
    assert len(collate([])) == 0
