"""Where a reward lands and what a truncated response looks like, from the engine's lengths alone."""

import torch

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.protocol.padding import pad_right
from ppo_lightning.rewards.managers import naive
from ppo_lightning.rewards.sample import Scored

EOS = 2


def test_pitfall_16_the_reward_is_at_the_last_valid_token():
    """[t0, t1, eos, pad, pad] with score 1: [0, 0, 1, 0, 0]; full row: last column; no token: the masked last one."""
    scored = [Scored(row, 1.0) for row in range(3)]
    rows = naive(scored, [3, 5, 0], 5, RewardConfig())
    assert rows.tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1]]
    assert rows.sum(-1).tolist() == [1.0, 1.0, 1.0]


def test_pitfall_16_the_naive_ways_miss_it():
    """Negative control: at the first EOS id a row that was truncated has no place, and pad == eos has the wrong one."""
    ids, mask = pad_right([[7, 8, 9, 10, 11], [7, 8]], 5, EOS)
    at_eos = (ids == EOS).int().argmax(-1)
    last = mask.sum(-1) - 1
    assert at_eos.tolist() == [0, 2]
    assert last.tolist() == [4, 1]


def test_pitfall_17_no_eos_is_added_to_a_truncated_response():
    ids, mask = pad_right([[7, 8, 9], [7, EOS]], 3, EOS)
    assert ids.tolist() == [[7, 8, 9], [7, EOS, EOS]]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert ids[0][mask[0].bool()].tolist() == [
        7,
        8,
        9,
    ]  # the naive fix, a forced EOS, would train a token nobody sampled
    assert torch.equal(mask.sum(-1), torch.tensor([3, 2]))
