"""Tokens computed over tokens needed, on lengths of GSM8K questions and answers in tokens of the packaged model."""

import numpy as np
import pytest
import torch

from ppo_lightning.config.schema import UpdateConfig
from ppo_lightning.errors import DataError
from ppo_lightning.models.packing import pack
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import pad_left, pad_right
from ppo_lightning.stages.chunks import micros

# The first 64 rows of train.jsonl: tokens of the question in the chat template, and of the worked answer with its end.
QUESTIONS = [
    86,
    81,
    108,
    103,
    74,
    112,
    109,
    154,
    159,
    115,
    123,
    142,
    88,
    118,
    78,
    117,
    103,
    127,
    111,
    111,
    120,
    97,
    110,
    104,
    128,
    141,
    100,
    134,
    97,
    102,
    106,
    111,
    163,
    115,
    90,
    97,
    95,
    131,
    118,
    126,
    92,
    118,
    113,
    101,
    116,
    134,
    91,
    102,
    95,
    105,
    118,
    110,
    96,
    107,
    117,
    82,
    109,
    109,
    122,
    136,
    107,
    144,
    87,
    137,
]
ANSWERS = [
    62,
    67,
    104,
    131,
    78,
    169,
    91,
    118,
    141,
    369,
    149,
    154,
    93,
    91,
    80,
    219,
    131,
    236,
    145,
    121,
    90,
    130,
    91,
    155,
    67,
    152,
    96,
    227,
    71,
    210,
    143,
    146,
    91,
    132,
    85,
    86,
    90,
    186,
    58,
    121,
    201,
    109,
    163,
    124,
    145,
    134,
    178,
    108,
    44,
    48,
    124,
    163,
    84,
    82,
    134,
    107,
    139,
    164,
    200,
    120,
    161,
    183,
    124,
    109,
]
N = 4


def batch_of(questions, answers):
    """Rows of N responses per question; the responses are answers of any questions, so that they are uneven."""
    rows = len(answers)
    prompts, prompt_mask = pad_left([[7] * questions[row // N] for row in range(rows)], max(questions), 0)
    responses, mask = pad_right([[9] * length for length in answers], max(answers), 0)
    return DataProto.from_dict(
        {
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], 1),
            "attention_mask": torch.cat([prompt_mask, mask], 1),
            "response_mask": mask,
        },
        {"uid": as_column([f"q{row // N}" for row in range(rows)])},
    )


@pytest.fixture(scope="module")
def gsm8k():
    order = np.random.default_rng(0).permutation(4 * len(ANSWERS))
    return batch_of(QUESTIONS, [(ANSWERS * 4)[place] for place in order])


def ratio(batch, update, sharing=False):
    chunks = list(micros(batch, update, sharing))
    assert sorted(row for chunk in chunks for row in chunk.rows) == list(range(len(batch)))
    return sum(chunk.computed for chunk in chunks) / sum(chunk.needed for chunk in chunks)


@pytest.mark.parametrize("budget", [2048, 4096, 8192])
def test_padding_under_a_token_budget_is_at_most_a_tenth(gsm8k, budget):
    update = UpdateConfig(tokens_per_microbatch=budget)
    assert 1.0 < ratio(gsm8k, update) <= 1.10
    for chunk in micros(gsm8k, update, False):
        assert chunk.computed <= budget


def test_padding_both_sides_apart_would_be_a_fifth(gsm8k):
    """Negative control: rows trimmed to the longest prompt plus the longest response among them."""
    chunks = list(micros(gsm8k, UpdateConfig(tokens_per_microbatch=4096), False))
    both = sum(chunk.tensors["input_ids"].numel() for chunk in chunks)
    assert both / sum(chunk.needed for chunk in chunks) > 1.15


@pytest.mark.parametrize("shared", [False, True], ids=["rows end to end", "prompts shared"])
def test_packed_rows_have_no_padding(gsm8k, shared):
    """Also what is counted is what is laid: the tokens of the packed row, and all of them are needed."""
    update, sharing = UpdateConfig(tokens_per_microbatch=4096), True
    batch = gsm8k.select()
    if not shared:
        batch.non_tensor_batch["uid"] = as_column([f"row{row}" for row in range(len(batch))])
    assert ratio(batch, update, sharing) == 1.0
    tokens = 0
    for chunk in micros(batch, update, sharing):
        tensors = chunk.tensors
        packed = pack(tensors["input_ids"], tensors["attention_mask"], tensors["responses"].shape[1], chunk.groups)
        assert packed.ids.shape == (1, chunk.computed)
        assert chunk.computed <= 4096
        assert bool((packed.ids != 0).all())
        tokens += chunk.computed
    mask = gsm8k.batch["response_mask"]
    responses = int(mask.sum() - mask.any(-1).sum())  # all but the last token of each
    assert tokens == (sum(QUESTIONS) if shared else N * sum(QUESTIONS)) + responses


@pytest.mark.parametrize("sharing", [False, True], ids=["padded", "packed"])
def test_pitfall_55_a_row_above_the_budget_is_an_error(gsm8k, sharing):
    longest = int(gsm8k.batch["attention_mask"].sum(-1).max())
    assert ratio(gsm8k, UpdateConfig(tokens_per_microbatch=longest), sharing) >= 1.0
    with pytest.raises(DataError, match=f"update.tokens_per_microbatch={longest - 1} must hold the longest row"):
        list(micros(gsm8k, UpdateConfig(tokens_per_microbatch=longest - 1), sharing))
