"""Mini-batches: the rows that were asked for, of the tensors that the loss reads, apart from the step's batch."""

import numpy as np
import pytest
import torch

from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.actor_loss import ActorLoss
from ppo_lightning.stages.critic_loss import CriticLoss
from ppo_lightning.stages.optimise import cut_minibatches

B, R = 6, 3


def batch():
    """Return a batch whose tensors hold their row's number in every place."""
    numbers = torch.arange(B)
    wide = numbers[:, None].expand(B, R).clone()
    keys = ("input_ids", "attention_mask", "responses", "response_mask")
    floats = ("advantages", "old_log_probs", "values", "returns", "rm_scores")
    tensors = {key: wide.clone() for key in keys} | {key: wide.float() for key in floats}
    columns = {"uid": [f"u{row}" for row in range(B)], "extra_info": [{"row": row} for row in range(B)]}
    return DataProto.from_dict(tensors | {"sample_index": numbers.clone()}, columns, {"temperature": 1.0})


@pytest.mark.parametrize("lists", [([0, 1, 2], [3, 4, 5]), ([4, 0, 2], [1, 5, 3]), ([2, 3], [5, 4], []), ([1, 2, 4],)])
def test_minibatches_hold_their_rows_in_order(lists):
    minis = cut_minibatches(batch(), [np.array(rows, dtype=np.int64) for rows in lists], ActorLoss.reads)
    assert [mini.batch["sample_index"].tolist() for mini in minis] == list(lists)
    for mini, rows in zip(minis, lists, strict=True):
        assert mini.non_tensor_batch["uid"].tolist() == [f"u{row}" for row in rows]
        for key, tensor in mini.tensors().items():
            numbers = torch.tensor(rows).reshape(-1, *[1] * (tensor.ndim - 1))
            assert torch.equal(tensor.long(), numbers.expand(tensor.shape).long()), key


def test_a_minibatch_of_all_rows_keeps_the_order_in_which_a_loss_writes_back():
    # On several ranks the common order of the rows is not that in which they lie on one of them.
    (mini,) = cut_minibatches(batch(), [np.array([3, 1, 0, 2, 5, 4])], ActorLoss.reads)
    assert mini.batch["sample_index"].tolist() == list(range(B))


def test_only_what_is_read_comes_along():
    models = {"input_ids", "attention_mask", "responses", "response_mask", "sample_index"}
    for loss, own in ((ActorLoss, {"advantages", "old_log_probs"}), (CriticLoss, {"values", "returns"})):
        for rows in ([0, 1], [1, 0], range(B)):
            (mini,) = cut_minibatches(batch(), [np.array(rows)], loss.reads)
            assert set(mini.tensors()) == models | own
            assert set(mini.non_tensor_batch) == {"uid"}
            assert mini.meta_info == {"temperature": 1.0}


@pytest.mark.parametrize("rows", [[0, 1], [4, 2], list(range(B))])
def test_what_a_loss_adds_does_not_reach_the_batch(rows):
    whole = batch()
    before = {key: tensor.clone() for key, tensor in whole.tensors().items()}
    (mini,) = cut_minibatches(whole, [np.array(rows)], ActorLoss.reads)
    mini.batch["response_mask"] = torch.zeros(len(rows), R, dtype=torch.int64)
    mini.batch["selection"] = torch.ones(len(rows), R)
    assert set(whole.tensors()) == set(before)
    for key, tensor in whole.tensors().items():
        assert torch.equal(tensor, before[key]), key


def test_consecutive_rows_are_not_copied():
    whole = batch()
    lists = [np.arange(2, 4), np.arange(B), np.array([2, 4])]
    shared = [
        mini.batch["advantages"].untyped_storage().data_ptr() == whole.batch["advantages"].untyped_storage().data_ptr()
        for mini in cut_minibatches(whole, lists, ActorLoss.reads)
    ]
    assert shared == [True, True, False]
