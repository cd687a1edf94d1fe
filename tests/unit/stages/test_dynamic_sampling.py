import pytest
import torch

from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import alike
from ppo_lightning.stages.dynamic_sampling import fill_up, groups_with_signal, raw_scores


def make(uids, scores, dropped=None, **columns):
    rewards = torch.zeros(len(uids), 2)
    rewards[:, 1] = torch.tensor(scores)
    tensors = {"rm_scores": rewards, "response_mask": torch.ones(len(uids), 2, dtype=torch.int64)}
    if dropped is not None:
        tensors["is_padding"] = torch.tensor(dropped)
    named = {"uid": as_column(uids)} | {name: as_column(values) for name, values in columns.items()}
    return DataProto.from_dict(tensors, named)


def test_a_group_has_signal_when_its_scores_differ():
    batch = make(["a", "a", "b", "b", "c", "c"], [0.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    assert groups_with_signal(batch).tolist() == [True, False, False]


def test_length_penalties_are_no_signal():
    """Both answers are right; one is penalised for its length: the raw scores decide."""
    batch = make(["a", "a"], [1.0, 0.4], acc=[1.0, 1.0])
    assert groups_with_signal(batch).tolist() == [False]
    assert groups_with_signal(make(["a", "a"], [1.0, 0.4])).tolist() == [True]  # without a raw column there is none


def test_a_scorers_own_score_comes_before_its_accuracy():
    batch = make(["a", "a"], [0.0, 0.0], acc=[0.0, 0.0], score=[0.5, 0.25])
    assert raw_scores(batch).tolist() == [0.5, 0.25]


def test_rows_that_failed_are_not_compared():
    """The dropped row's 0 is no score: what is left of group a is all right, of group b a lone row."""
    batch = make(["a", "a", "a", "b", "b"], [0.0, 1.0, 1.0, 1.0, 0.0], dropped=[True, False, False, False, True])
    assert groups_with_signal(batch).tolist() == [False, False]
    batch.non_tensor_batch["acc"] = as_column([None, 1.0, 0.0, 1.0, None])
    assert groups_with_signal(batch).tolist() == [True, False]


def test_filled_up_groups_count_nowhere():
    kept = make(["a", "a"], [0.0, 1.0])
    spare = make(["b", "b", "c", "c"], [1.0, 1.0, 0.0, 0.0])
    full = fill_up(kept, spare, 2)
    assert full.non_tensor_batch["uid"].tolist() == ["a", "a", "b", "b"]
    assert full.batch["is_padding"].tolist() == [False, False, True, True]
    assert full.batch["response_mask"].sum(-1).tolist() == [2, 2, 0, 0]


@pytest.mark.parametrize("groups", [1, 2])
def test_what_is_too_much_is_cut_by_whole_groups(groups):
    kept = make(["a", "a", "b", "b"], [0.0, 1.0, 0.0, 1.0])
    assert (
        fill_up(kept, kept.select_idxs([]), groups).non_tensor_batch["uid"].tolist()
        == ["a", "a", "b", "b"][: 2 * groups]
    )


def test_nothing_kept_at_all():
    spare = make(["b", "b"], [1.0, 1.0])
    full = fill_up(spare.select_idxs([]), spare, 1)
    assert full.batch["is_padding"].tolist() == [True, True]


def test_batches_whose_rewards_gave_other_columns_join():
    joined = alike([make(["a"], [0.0], dropped=[True], pred=["x"]), make(["b"], [1.0], parts=[2])])
    assert joined.non_tensor_batch["pred"].tolist() == ["x", None]
    assert joined.non_tensor_batch["parts"].tolist() == [None, 2]
    assert joined.batch["is_padding"].tolist() == [True, False]
