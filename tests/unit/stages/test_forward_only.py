"""Which rows are only run forward."""

import numpy as np
import pytest
import torch

from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.forward_only import apart, without_weight

NAN = float("nan")


def mini(advantages, masks, uids=None):
    """Return rows of the given advantages (B, R) and response masks, with attention on as many tokens and one more."""
    mask = torch.tensor(masks)
    attention = torch.cat([torch.ones(len(mask), 1, dtype=torch.int64), mask], 1)
    tensors = {"advantages": torch.tensor(advantages), "response_mask": mask, "attention_mask": attention}
    return DataProto.from_dict(tensors, {} if uids is None else {"uid": as_column(uids)})


def rows_of(batch, by_advantage=True):
    return tuple(rows.tolist() for rows in apart(batch, without_weight(batch, by_advantage)))


FULL = [[1, 1]] * 4


@pytest.mark.parametrize(
    ("advantages", "expected"),
    [
        ([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [-1.0, -1.0]], ([0, 1], [2, 3])),
        ([[1.0, 1.0], [-1.0, 0.0], [1.0, 1.0], [-1.0, -1.0]], ([], [0, 1, 2, 3])),
        ([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [NAN, 0.0]], ([0, 1], [2, 3])),  # a fault is looked at, not left out
        ([[-0.0, 0.0], [0.0, 0.0], [0.0, 1e-30], [0.0, 0.0]], ([0, 1], [2, 3])),
    ],
)
def test_groups_of_advantage_0_need_no_backward_pass(advantages, expected):
    assert rows_of(mini(advantages, FULL, ["a", "a", "b", "b"])) == expected


def test_rows_of_one_prompt_stay_together():
    """Row 0 has no advantage, its companion has: the prompt is computed once for both."""
    batch = mini([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]], FULL, ["a", "a", "b", "b"])
    assert rows_of(batch) == ([2, 3], [0, 1])
    assert rows_of(batch.select(non_tensor_batch_keys=[])) == ([0, 2, 3], [1])  # without prompts: row by row


def test_one_row_is_trained_on_if_none_has_a_gradient():
    """The shortest."""
    batch = mini(np.zeros((4, 2), np.float32).tolist(), [[1, 1], [1, 1], [1, 0], [1, 1]], ["a", "a", "b", "b"])
    assert rows_of(batch) == ([0, 1, 3], [2])


def test_masked_tokens_do_not_count():
    """An advantage under the mask is no reason for a backward pass; a valid token is one where the loss has more."""
    batch = mini([[0.0, 5.0], [0.0, NAN], [1.0, 0.0], [1.0, 0.0]], [[1, 0], [1, 0], [1, 1], [0, 0]])
    assert rows_of(batch) == ([0, 1, 3], [2])
    assert rows_of(batch, by_advantage=False) == ([3], [0, 1, 2])


def test_a_mini_batch_without_rows_has_none():
    batch = mini([[1.0, 1.0]], [[1, 1]], ["a"]).select_idxs([])
    assert rows_of(batch) == ([], [])
