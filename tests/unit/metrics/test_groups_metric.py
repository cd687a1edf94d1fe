"""The share of groups without a difference, over groups of at least two rows that count."""

import numpy as np
import torch

from ppo_lightning.metrics.groups import EQUAL_GROUPS, group_metrics
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import MARKER


def share(scores, uid, padding=None):
    rows = torch.zeros(len(scores), 3)
    rows[:, 1] = torch.tensor(scores)
    tensors = {"token_level_scores": rows}
    if padding is not None:
        tensors[MARKER] = torch.tensor(padding)
    book = MetricBook()
    group_metrics(DataProto.from_dict(tensors, {"uid": np.array(uid, dtype=object)}), book)
    return book.compute().get(EQUAL_GROUPS)


def test_by_hand():
    # a: equal; b: differ; c: equal (0.7 in float32 twice); one row of its own counts in no group of two
    assert share([1, 1, 0, 1, 0.7, 0.7, 5], ["a", "a", "b", "b", "c", "c", "d"]) == 2 / 3


def test_groups_of_one_only():
    assert share([1, 2], ["a", "b"]) is None


def test_padding_counts_nowhere():
    assert share([1, 1, 0, 1], ["a", "a", "b", "b"], [False, False, False, True]) == 1.0
