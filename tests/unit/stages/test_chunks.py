"""Which rows share a forward pass, worked by hand, and how a fault in one of them is named."""

import numpy as np
import torch
from torch import nn

from ppo_lightning.config.schema import UpdateConfig
from ppo_lightning.parallel.ranks import Ranks
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import pad_left, pad_right
from ppo_lightning.stages.chunks import micros
from ppo_lightning.stages.finite import update_fault

UIDS = ["a", "a", "a", "b", "b"]
PROMPTS = [4, 4, 4, 2, 2]
RESPONSES = [6, 6, 6, 3, 1]  # of which 5, 5, 5, 2, 0 are computed


def make():
    prompts, prompt_mask = pad_left([[7] * length for length in PROMPTS], 4, 0)
    responses, mask = pad_right([[9] * length for length in RESPONSES], 6, 0)
    tensors = {
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], 1),
        "attention_mask": torch.cat([prompt_mask, mask], 1),
        "response_mask": mask,
        "sample_index": torch.tensor([0, 1, 2, 0, 1]),
    }
    return DataProto.from_dict(tensors, {"uid": UIDS})


def cut(update, sharing, rows=None):
    chunks = micros(make(), update, sharing, None if rows is None else np.array(rows))
    return [(chunk.rows.tolist(), chunk.groups, chunk.computed, chunk.needed) for chunk in chunks]


def test_a_prompt_whose_responses_are_above_the_budget_is_computed_twice():
    # 4 + 5 + 5 = 14; with the third response 19 > 16, so it gets a pass of its own: 4 + 5 = 9. Prompt b: 2 + 2 + 0 = 4.
    found = cut(UpdateConfig(tokens_per_microbatch=16), sharing=True)
    assert found == [([0, 1], [[0, 1]], 14, 14), ([2, 3, 4], [[0], [1, 2]], 13, 13)]


def test_rows_are_counted_where_no_budget_of_tokens_is_given():
    found = cut(UpdateConfig(sequences_per_microbatch=2), sharing=True)
    assert found == [([0, 1], [[0, 1]], 14, 14), ([2], [[0]], 9, 9), ([3, 4], [[0, 1]], 4, 4)]


def test_padded_rows():
    found = cut(UpdateConfig(sequences_per_microbatch=4), sharing=False)
    assert found == [([0, 1, 2, 3], None, 40, 35), ([4], None, 3, 3)]


def test_some_rows_keep_their_numbers():
    assert cut(UpdateConfig(sequences_per_microbatch=2), sharing=True, rows=[1, 3, 4]) == [
        ([1], [[0]], 9, 9),
        ([3, 4], [[0, 1]], 4, 4),
    ]
    found = cut(UpdateConfig(sequences_per_microbatch=2), sharing=False, rows=[4, 2, 3])
    assert found == [([2, 3], None, 20, 15), ([4], None, 3, 3)]
    (chunk, _) = micros(make(), UpdateConfig(sequences_per_microbatch=2), False, np.array([4, 2, 3]))
    assert chunk.tensors["sample_index"].tolist() == [2, 0]


def test_a_fault_names_the_rows_of_its_micro_batch():
    batch = make()
    chunks = list(micros(batch, UpdateConfig(sequences_per_microbatch=2), sharing=True))
    losses = [(chunk, torch.tensor(number)) for chunk, number in zip(chunks, (1.0, 2.0, float("nan")), strict=True)]
    fault = update_fault("actor", nn.Linear(1, 1), torch.tensor(1.0), batch, losses, Ranks())
    assert str(fault) == "stage update: the actor's loss was not finite in 2 row(s): b/0, b/1"
