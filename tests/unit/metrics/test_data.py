import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from ppo_lightning.metrics.data import column_metrics, data_metrics, lengths
from ppo_lightning.metrics.values import NONFINITE_KEY, MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import pad_to_divisor


def compute(batch, use_critic=True, **widths):
    book = MetricBook()
    data_metrics(batch, book, use_critic, **widths)
    return book.compute()


def test_worked_example(make_batch):
    # three rows of 5, 2 and 0 response tokens (R = 5), prompts of 4, 1 and 2 tokens (P = 4)
    scores = torch.tensor([[0, 0, 0, 0, 1.0], [0, 0.5, 0, 0, 0], [0, 0, 0, 0, 8.0]])
    advantages = torch.tensor([[1, 1, 1, 1, 1.0], [-2, -2, 9, 9, 9], [9, 9, 9, 9, 9]])
    returns = torch.tensor([[1, 1, 1, 1, 1.0], [0.5, 0.5, 7, 7, 7], [7, 7, 7, 7, 7]])
    values = torch.tensor([[0, 1, 1, 1, 2.0], [0.5, 0.5, 5, 5, 5], [5, 5, 5, 5, 5]])
    batch = make_batch(
        [5, 2, 0], [4, 1, 2], token_level_scores=scores, advantages=advantages, returns=returns, values=values
    )
    found = compute(batch)
    assert found["critic/score/mean"] == 0.75  # (1 + 0.5) / 2: the aborted row's 8 is left out
    assert (found["critic/score/max"], found["critic/score/min"]) == (1.0, 0.5)
    assert found["critic/advantages/mean"] == pytest.approx(1 / 7)  # (5 - 4) / 7 valid tokens
    assert (found["critic/advantages/max"], found["critic/advantages/min"]) == (1.0, -2.0)
    assert found["critic/returns/mean"] == pytest.approx(6 / 7)
    assert found["critic/values/mean"] == pytest.approx(6 / 7)
    # returns: 1 x 5, 0.5 x 2, variance 5 * (1/7)**2 + 2 * (5/14)**2 over 6; errors 1, 0, 0, 0, -1, 0, 0: 2 / 6
    variance = (5 / 49 + 2 * 25 / 196) / 6
    assert found["critic/vf_explained_var"] == pytest.approx(1 - (2 / 6) / (variance + 1e-5))
    assert found["response_length/mean"] == pytest.approx(7 / 3)
    assert (found["response_length/max"], found["response_length/min"]) == (5.0, 0.0)
    assert found["response_length/clip_ratio"] == pytest.approx(1 / 3)
    assert found["response_length_non_aborted/mean"] == 3.5
    assert (found["response_length_non_aborted/max"], found["response_length_non_aborted/min"]) == (5.0, 2.0)
    assert found["response_length_non_aborted/clip_ratio"] == 0.5
    assert found["response/aborted_ratio"] == pytest.approx(1 / 3)
    assert found["prompt_length/mean"] == pytest.approx(7 / 3)
    assert (found["prompt_length/max"], found["prompt_length/min"]) == (4.0, 1.0)
    assert found["prompt_length/clip_ratio"] == pytest.approx(1 / 3)


def test_without_a_critic_there_are_no_values(make_batch):
    found = compute(make_batch([3, 2]), use_critic=False)
    assert "critic/returns/mean" in found
    assert not [key for key in found if key.startswith("critic/v")]


def test_widths_given_count_for_the_clip_ratios(make_batch):
    found = compute(make_batch([5, 2], [4, 4]), response_width=9, prompt_width=6)
    assert found["response_length/clip_ratio"] == 0.0
    assert found["prompt_length/clip_ratio"] == 0.0


def test_process_rewards_on_several_positions_are_summed(make_batch):
    found = compute(make_batch([3], token_level_rewards=torch.tensor([[0.25, 0.5, -1.0, 0.0, 0.0]])))
    assert found["critic/rewards/mean"] == -0.25


def test_split_over_ranks_changes_nothing(make_batch, over_ranks):
    batch = make_batch([5, 0, 2, 1, 4, 0, 3], [1, 2, 3, 4, 1, 2, 3])
    whole = compute(batch)
    for cuts in ((0, 3, 7), (0, 1, 2, 7), (0, 5, 6, 7)):
        books = []
        for start, end in pairwise(cuts):
            books.append(MetricBook())
            data_metrics(batch[start:end], books[-1], use_critic=True)
        assert over_ranks(*books) == pytest.approx(whole, rel=1e-12)


def test_padding_rows_count_nowhere(make_batch):
    batch = make_batch([5, 0, 2])
    padded, added = pad_to_divisor(batch, 4)
    assert added == 1
    assert compute(padded) == compute(batch)


def test_pitfall_18_lengths_are_of_what_was_generated_not_of_what_is_trained(make_batch):
    batch = make_batch([5, 3])
    batch.batch["response_mask"][0] = 0  # a truncated response, left out of the loss
    found = compute(batch)
    assert found["response_length/mean"] == 4.0
    assert found["response_length/clip_ratio"] == 0.5
    assert found["response/aborted_ratio"] == 0.0
    assert lengths(batch)[1].tolist() == [5, 3]
    assert float(batch.batch["response_mask"].sum(-1).double().mean()) == 1.5  # the trained mask says something else


def test_pitfall_22_all_aborted_leaves_only_what_is_defined(make_batch):
    found = compute(make_batch([0, 0]))
    assert found["response/aborted_ratio"] == 1.0
    assert found["response_length/mean"] == 0.0
    assert found["prompt_length/mean"] == 2.0
    assert not [key for key in found if key.startswith(("critic/", "response_length_non_aborted/"))]
    assert NONFINITE_KEY not in found
    with pytest.raises(RuntimeError):
        torch.empty(0).max()  # the naive way


def test_pitfall_22_empty_batch_of_one_rank_adds_nothing(make_batch, over_ranks):
    batch = make_batch([5, 2])
    full, empty = MetricBook(), MetricBook()
    data_metrics(batch, full, use_critic=True)
    data_metrics(batch[2:], empty, use_critic=True)
    assert empty.compute() == {}
    assert over_ranks(full, empty) == full.compute()


def test_pitfall_23_one_token_has_no_explained_variance(make_batch):
    found = compute(make_batch([1, 0]))
    assert "critic/vf_explained_var" not in found
    assert found["critic/values/mean"] == found["critic/values/max"]


def test_a_nan_under_the_mask_never_leaks_and_one_outside_is_seen(make_batch):
    batch = make_batch([2, 1])
    batch.batch["advantages"][0, 4] = math.nan
    assert NONFINITE_KEY not in compute(batch)
    batch.batch["advantages"][0, 0] = math.nan
    found = compute(batch)
    assert found["critic/advantages/mean"] is None
    assert found[NONFINITE_KEY] == 3.0  # once in each of mean, max and min


def test_columns_are_averaged_over_the_rows_that_have_them(make_batch):
    batch = make_batch([1, 1, 1, 1])
    batch.union(
        DataProto.from_dict(
            non_tensors={
                "acc": [True, None, False, None],
                "format": [0.5, 0.0, None, np.float32(1.0)],
                "pred": ["4", "5", None, "6"],
            }
        )
    )
    book = MetricBook()
    column_metrics(batch, book, ["acc", "format", "pred"])
    found = book.compute()
    assert found["reward/acc/mean"] == 0.5  # one of two, not one of four
    assert found["reward/format/mean"] == 0.5  # (0.5 + 0 + 1) / 3: a zero is a number
    assert not [key for key in found if "pred" in key]
