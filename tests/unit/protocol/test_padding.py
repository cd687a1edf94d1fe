"""Padding of rows and tokens, and the layout that everything relies on (SPEC 1.5 to 1.7)."""

import numpy as np
import pytest
import torch

from ppo_lightning.errors import DataError
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import (
    group_ids,
    pad_left,
    pad_right,
    pad_to_divisor,
    position_ids_from_mask,
    response_mask_from_lengths,
    unpad,
    verify_convention,
    without_padding,
)

PAD = EOS = 0


def scored(rows):
    """Rows with one valid token each and score i + 1."""
    return DataProto.from_dict(
        {"row": torch.arange(rows), "response_mask": torch.ones(rows, 1, dtype=torch.int64)},
        {"uid": [f"u{i // 2}" for i in range(rows)], "extra_info": [{"row": i} for i in range(rows)]},
        {"t": 1},
    )


# ---- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "divisor", "pad", "order"),
    [
        (5, 4, 3, [0, 1, 2, 3, 4, 0, 1, 2]),
        (4, 4, 0, [0, 1, 2, 3]),
        (1, 4, 3, [0, 0, 0, 0]),  # fewer rows than the divisor: the head is gone through more than once
        (2, 5, 3, [0, 1, 0, 1, 0]),
        (3, 1, 0, [0, 1, 2]),
        (0, 4, 0, []),
    ],
)
def test_padding_repeats_the_head_and_unpad_restores(rows, divisor, pad, order):
    batch = scored(rows)
    padded, size = pad_to_divisor(batch, divisor)
    assert size == pad == -rows % divisor
    assert padded.batch["row"].tolist() == order
    assert [info["row"] for info in padded.non_tensor_batch["extra_info"]] == order
    assert padded.batch["is_padding"].tolist() == [False] * rows + [True] * pad
    assert padded.batch["response_mask"].sum() == rows
    assert padded.meta_info is batch.meta_info
    restored = unpad(padded, size)
    assert restored.row_keys() == batch.row_keys()
    assert restored.batch["row"].tolist() == list(range(rows))


def test_padding_leaves_the_given_batch_alone():
    batch = scored(3)
    padded, _ = pad_to_divisor(batch, 2)
    padded.non_tensor_batch["extra_info"][3]["row"] = "padding"
    assert "is_padding" not in batch
    assert batch.batch["response_mask"].sum() == 3
    assert padded.non_tensor_batch["extra_info"][0]["row"] == 0


def test_padding_twice_keeps_the_first_marker():
    once, first = pad_to_divisor(scored(3), 2)
    twice, second = pad_to_divisor(once, 3)
    assert twice.batch["is_padding"].tolist() == [False] * 3 + [True] * 3
    assert once.batch["is_padding"].tolist() == [False] * 3 + [True]
    assert twice.batch["response_mask"].sum() == 3
    back = unpad(twice, second)
    assert back.batch["is_padding"].tolist() == [False] * 3 + [True]
    assert "is_padding" not in unpad(back, first)


def test_padding_row_carries_no_weight():
    # Scores 1, 2, 3 and a padding row that repeats score 1: the mean is 2. Counting the row would give 7 / 4.
    padded, _ = pad_to_divisor(scored(3), 2)
    scores, mask = padded.batch["row"] + 1.0, padded.batch["response_mask"][:, 0]
    assert (scores * mask).sum() / mask.sum() == 2.0
    assert without_padding(padded).batch["row"].add(1.0).mean() == 2.0
    assert scores.mean() == 1.75


def test_without_padding_of_a_batch_without_any():
    batch = scored(3)
    assert without_padding(batch) is batch
    padded, _ = pad_to_divisor(batch, 3)
    assert without_padding(padded) is padded


@pytest.mark.parametrize("divisor", [0, -2])
def test_divisor_below_one_is_refused(divisor):
    with pytest.raises(DataError, match=f"at least 1, got {divisor}"):
        pad_to_divisor(scored(2), divisor)


def test_unpad_refuses_rows_that_are_not_padding():
    padded, size = pad_to_divisor(scored(3), 2)
    padded.reorder([3, 0, 1, 2])
    with pytest.raises(DataError, match="last 1 rows must be padding, but row 3 is not: was the order not restored"):
        unpad(padded, size)
    with pytest.raises(DataError, match="cannot cut 5 padding rows off a batch of 4 rows"):
        unpad(padded, 5)


def test_unpad_of_results_that_have_no_marker():
    results = DataProto.from_dict({"rm_scores": torch.arange(4.0)})
    assert unpad(results, 1).batch["rm_scores"].tolist() == [0.0, 1.0, 2.0]


def test_padding_of_columns_alone():
    padded, size = pad_to_divisor(DataProto.from_dict(non_tensors={"x": ["a", "b", "c"]}), 2)
    assert (size, padded.non_tensor_batch["x"].tolist()) == (1, ["a", "b", "c", "a"])
    assert padded.batch["is_padding"].tolist() == [False, False, False, True]


# ---- groups (PITFALL 26) --------------------------------------------------------------------------------------------


def test_pitfall_26_groups_survive_reorder_chunk_and_padding():
    batch = DataProto.from_dict({"row": torch.arange(6)}, {"uid": ["b", "b", "a", "a", "c", "c"]})
    assert group_ids(batch).tolist() == [0, 0, 1, 1, 2, 2]
    batch.reorder([5, 0, 2, 4, 1, 3])
    assert group_ids(batch).tolist() == [0, 1, 2, 0, 1, 2]
    assert group_ids(DataProto.concat(batch.chunk(3))).tolist() == [0, 1, 2, 0, 1, 2]
    padded, _ = pad_to_divisor(batch, 4)
    assert group_ids(padded).tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    # The naive numbering by uid alone lets the padding rows into groups 0 and 1.
    assert np.unique(padded.non_tensor_batch["uid"], return_counts=True)[1].tolist() == [2, 3, 3]


def test_pitfall_26_same_prompt_drawn_twice_is_two_groups():
    batch = DataProto.from_dict({"row": torch.arange(2)}, {"uid": ["draw 0", "draw 1"], "raw_prompt": ["1 + 1?"] * 2})
    assert group_ids(batch.repeat(2)).tolist() == [0, 0, 1, 1]


# ---- tokens ---------------------------------------------------------------------------------------------------------


def test_mask_comes_from_lengths():
    mask = response_mask_from_lengths(torch.tensor([0, 2, 3]), 3)
    assert mask.tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert mask.dtype == torch.int64
    assert response_mask_from_lengths(torch.zeros(0, dtype=torch.int64), 3).shape == (0, 3)


@pytest.mark.parametrize(("lengths", "row"), [([1, 4], 1), ([-1, 2], 0)])
def test_length_outside_the_width_names_the_row(lengths, row):
    with pytest.raises(DataError, match=rf"from 0 to the width 3, got {lengths[row]} in row {row}"):
        response_mask_from_lengths(torch.tensor(lengths), 3)


def test_pitfall_14_sampled_eos_is_valid_when_pad_equals_eos():
    # The answer "4 <eos>" in width 5: the mask comes from the length 2; comparing with pad loses the <eos>.
    responses, mask = pad_right([[52, EOS]], 5, PAD)
    assert mask.tolist() == [[1, 1, 0, 0, 0]]
    assert (responses != PAD).long().tolist() == [[1, 0, 0, 0, 0]]


def test_pitfall_15_and_17_no_eos_is_searched_or_added():
    # Cut off after three tokens, none of which ends the sequence: all three count and nothing is appended.
    responses, mask = pad_right([[5, 6, 7]], 3, PAD)
    assert responses.tolist() == [[5, 6, 7]]
    assert mask.tolist() == [[1, 1, 1]]


def test_pitfall_15_control_searching_for_an_eos_mistakes_a_response_without_one():
    responses, mask = pad_right([[5, 6, 7]], 5, PAD)
    eos = 9
    first = (responses == eos).int().argmax(-1)  # 0 where there is none
    assert (torch.arange(5) <= first.unsqueeze(-1)).long().tolist() == [[1, 0, 0, 0, 0]]
    before = (responses == eos).cumsum(-1) == 0  # everything before the first one: padding counts
    assert before.long().tolist() == [[1, 1, 1, 1, 1]]
    assert mask.tolist() == [[1, 1, 1, 0, 0]]


def test_pad_left_and_right():
    ids, mask = pad_left([[1, 2], [], [3, 4, 5]], 3, 9)
    assert ids.tolist() == [[9, 1, 2], [9, 9, 9], [3, 4, 5]]
    assert mask.tolist() == [[0, 1, 1], [0, 0, 0], [1, 1, 1]]
    ids, mask = pad_right([[1, 2], [], [3, 4, 5]], 3, 9)
    assert ids.tolist() == [[1, 2, 9], [9, 9, 9], [3, 4, 5]]
    assert mask.tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    with pytest.raises(DataError, match="got 4 in row 0"):
        pad_left([[1, 2, 3, 4]], 3, 9)


def test_positions_count_from_the_first_token():
    mask = torch.tensor([[0, 0, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]])
    assert position_ids_from_mask(mask).tolist() == [[0, 0, 0, 1, 2, 2], [0, 1, 2, 2, 2, 2]]


def laid_out(prompts=((1, 2), (3,)), responses=((4,), (5, 6, 7))):
    prompt_ids, prompt_mask = pad_left(prompts, 3, PAD)
    response_ids, response_mask = pad_right(responses, 4, PAD)
    return DataProto.from_dict(
        {
            "prompts": prompt_ids,
            "responses": response_ids,
            "input_ids": torch.cat([prompt_ids, response_ids], dim=1),
            "attention_mask": torch.cat([prompt_mask, response_mask], dim=1),
            "response_mask": response_mask,
        }
    )


def test_convention_holds():
    batch = laid_out()
    verify_convention(batch)
    assert torch.equal(batch.batch["attention_mask"][:, -4:], batch.batch["response_mask"])
    verify_convention(laid_out([[1], [2]], [[], []]))
    batch.batch["response_mask"][1, 1] = 0  # a tool token in the middle is left out of the loss
    verify_convention(batch)


@pytest.mark.parametrize(
    ("key", "row", "values", "must"),
    [
        ("attention_mask", 1, [1, 0, 0, 1, 1, 1, 0], "prompts must be padded on the left only"),
        ("attention_mask", 1, [1, 0, 1, 1, 1, 1, 0], "prompts must be padded on the left only"),
        ("attention_mask", 1, [0, 0, 1, 0, 1, 1, 1], "responses must be padded on the right only"),
        ("attention_mask", 1, [0, 0, 1, 1, 0, 1, 1], "responses must be padded on the right only"),
        ("attention_mask", 1, [0, 0, 1, 2, 1, 1, 0], "attention_mask must hold only 0 and 1"),
        ("input_ids", 0, [0, 1, 1, 4, 0, 0, 0], "input_ids must begin with the row's prompt"),
        ("input_ids", 1, [0, 0, 3, 5, 6, 7, 7], "input_ids must end with the row's response"),
        ("response_mask", 0, [1, 1, 0, 0], "response_mask must be 0 on padding"),
    ],
)
def test_broken_convention_names_the_row(key, row, values, must):
    batch = laid_out()
    batch.batch[key][row] = torch.tensor(values)
    with pytest.raises(DataError, match=rf"{must}, but row {row} breaks it"):
        verify_convention(batch)


def test_responses_padded_on_the_left_would_shift_every_reward():
    # Response [5, 6] padded on the left: the slice of the mask is [0, 0, 1, 1], its length 2 still looks right, and a
    # score at index L - 1 = 1 would land on padding.
    batch = laid_out()
    batch.batch["attention_mask"][0] = torch.tensor([0, 1, 1, 0, 0, 0, 1])
    naive = batch.batch["attention_mask"][:, -4:]
    assert naive[0].sum() == 1
    assert naive[0, naive[0].sum() - 1] == 0
    with pytest.raises(DataError, match="row 0"):
        verify_convention(batch)


def test_widths_that_do_not_add_up():
    batch = laid_out()
    batch.pop(["input_ids"])
    batch.union(DataProto.from_dict({"input_ids": torch.zeros(2, 6, dtype=torch.int64)}))
    with pytest.raises(DataError, match="as wide as prompts and responses together"):
        verify_convention(batch)
