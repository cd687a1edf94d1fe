"""Micro-batches: strict budgets, trimming, and results back in their rows (PITFALL 13, 55)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ppo_lightning.errors import DataError
from ppo_lightning.parallel.micro_batches import (
    by_count,
    by_tokens,
    micro_batches,
    restore,
    split_rows,
    token_lengths,
)
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import pad_left, pad_right, verify_convention

P, R = 4, 6
PROMPTS = [2, 4, 1, 3, 1]
RESPONSES = [3, 1, 6, 0, 2]


def make(prompts=PROMPTS, responses=RESPONSES):
    prompt_ids, prompt_mask = pad_left([range(1, 1 + length) for length in prompts], P, 0)
    response_ids, response_mask = pad_right([range(11, 11 + length) for length in responses], R, 0)
    rows = len(prompts)
    return DataProto.from_dict(
        {
            "prompts": prompt_ids,
            "responses": response_ids,
            "input_ids": torch.cat([prompt_ids, response_ids], dim=1),
            "attention_mask": torch.cat([prompt_mask, response_mask], dim=1),
            "response_mask": response_mask,
            "advantages": torch.arange(rows)[:, None] + torch.arange(R) / 10,
            "dataset_index": torch.arange(rows),
            "mine": torch.arange(rows)[:, None].repeat(1, R),
        },
        {"uid": [f"u{row}" for row in range(rows)]},
        {"temperature": 1.0},
    )


def cut(batch, sequences, tokens=None):
    lengths = token_lengths(batch)
    return micro_batches(batch, split_rows(*lengths, sequences, tokens), *lengths)


def test_by_count_groups_similar_lengths():
    assert [rows.tolist() for rows in by_count(np.array([5, 9, 1, 9, 4]), 2)] == [[1, 3], [0, 4], [2]]
    assert by_count(np.zeros(0, dtype=np.int64), 2) == []
    with pytest.raises(DataError, match=r"update\.sequences_per_microbatch must be at least 1, got 0"):
        by_count(np.array([1]), 0)


def test_by_tokens_hand_worked():
    # Longest first: rows 1 (4 + 4), 0 (1 + 6), 2 (1 + 1), 3 (1 + 1). Budget 15:
    # row 1 is 8 wide, 2 x 8 = 16 > 15. Row 0 is 7; with row 2: 2 x 7 = 14; with row 3: 3 x 7 = 21 > 15.
    rows = by_tokens(np.array([1, 4, 1, 1]), np.array([6, 4, 1, 1]), 15)
    assert [part.tolist() for part in rows] == [[1], [0, 2], [3]]


def test_budget_counts_padding():
    # Valid tokens alone are 8 + 7 = 15, but the model would compute 2 rows x 8 columns.
    prompts, responses = np.array([1, 4]), np.array([6, 4])
    assert (prompts + responses).sum() <= 15
    assert len(by_tokens(prompts, responses, 15)) == 2
    assert len(by_tokens(prompts, responses, 16)) == 1


def test_row_above_the_budget_is_an_error_that_names_the_key():
    with pytest.raises(
        DataError, match=r"update.tokens_per_microbatch=9 must hold .* got 10 tokens in row 1: set it to 10"
    ):
        by_tokens(np.array([2, 5]), np.array([2, 5]), 9)
    assert len(by_tokens(np.array([2, 5]), np.array([2, 5]), 10)) == 2


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40), st.integers(60, 300))
def test_pitfall_55_budget_is_never_exceeded(lengths, budget):
    prompts = np.array([prompt for prompt, _ in lengths], dtype=np.int64)
    responses = np.array([response for _, response in lengths], dtype=np.int64)
    found = by_tokens(prompts, responses, budget)
    for rows in found:
        assert len(rows) * (prompts + responses)[rows].max() <= budget
    assert sorted(int(row) for rows in found for row in rows) == list(range(len(lengths)))


def test_grouping_by_length_saves_computation():
    prompts, responses = np.ones(64, dtype=np.int64), np.array([10, 500] * 32)
    computed = sum(len(rows) * responses[rows].max() for rows in by_count(prompts + responses, 8))
    unsorted = sum(8 * responses[start : start + 8].max() for start in range(0, 64, 8))
    assert (computed, unsorted) == (32 * 10 + 32 * 500, 64 * 500)


def test_trimming_drops_only_what_is_padding_everywhere():
    batch = make()
    (micro,) = micro_batches(batch, [np.array([4, 0])], *token_lengths(batch))
    # Row 4 holds 1 + 2 tokens, row 0 holds 2 + 3: two prompt columns and three response columns stay.
    assert micro.tensors["prompts"].tolist() == [[0, 1], [1, 2]]
    assert micro.tensors["responses"].tolist() == [[11, 12, 0], [11, 12, 13]]
    assert micro.tensors["input_ids"].tolist() == [[0, 1, 11, 12, 0], [1, 2, 11, 12, 13]]
    assert micro.tensors["attention_mask"].tolist() == [[0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    torch.testing.assert_close(micro.tensors["advantages"], torch.tensor([[4.0, 4.1, 4.2], [0.0, 0.1, 0.2]]))
    assert micro.tensors["dataset_index"].tolist() == [4, 0]
    assert micro.tensors["mine"].shape == (2, R)  # undeclared: left as it is
    verify_convention(DataProto.from_dict(micro.tensors))


def test_rows_without_response_keep_one_column():
    (micro,) = cut(make([1], [0]), 1)
    assert micro.tensors["input_ids"].tolist() == [[1, 0]]
    assert micro.tensors["response_mask"].tolist() == [[0]]


@pytest.mark.parametrize(
    ("sequences", "tokens"), [(1, None), (2, None), (5, None), (9, None), (1, 10), (1, 17), (1, 99)]
)
def test_pitfall_13_results_return_to_their_rows(sequences, tokens):
    batch = make()
    parts = []
    for micro in cut(batch, sequences, tokens):
        parts.append((micro.rows, micro.tensors["advantages"] * micro.tensors["response_mask"]))
    expected = batch.batch["advantages"] * batch.batch["response_mask"]
    assert torch.equal(restore(parts, 5, R), expected)


def test_pitfall_13_joining_without_restoring_mixes_rows():
    batch = make()
    parts = [micro.tensors["dataset_index"] for micro in cut(batch, 2)]
    assert torch.cat(parts).tolist() != batch.batch["dataset_index"].tolist()


def test_restoring_keeps_gradients_and_type():
    values = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    restored = restore([(np.array([1, 0]), values)], 2, 3)
    assert restored.dtype == torch.float64
    restored.sum().backward()
    assert values.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_restoring_nothing():
    assert restore([], 0, 3).shape == (0, 3)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([([0, 1], (2, 3))], "each of 3 rows once, got row 2 0 times"),
        ([([0, 1, 2], (3, 3)), ([1], (1, 3))], "got row 1 2 times"),
        ([([0, 1, 2, 3], (4, 3))], "got row 3 1 times"),
        ([], "got row 0 0 times"),
        ([([0, 1, 2], (2, 3))], r"values of 3 rows must be at most 4 wide, got shape \(2, 3\)"),
        ([([0, 1, 2], (3, 5))], r"at most 4 wide, got shape \(3, 5\)"),
        ([([0, 1, 2], (3,))], r"got shape \(3,\)"),
    ],
)
def test_rows_that_do_not_come_back_once_are_an_error(parts, text):
    with pytest.raises(DataError, match=text):
        restore([(np.array(rows), torch.zeros(shape)) for rows, shape in parts], 3, 4)
