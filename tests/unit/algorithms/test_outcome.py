import math

import torch

from ppo_lightning.algorithms.outcome import row_scores, spread


def test_a_score_on_the_last_column_of_an_empty_row_counts():
    rewards = torch.tensor([[0.0, 0.5, 0.0], [0.0, 0.0, 1.0]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert row_scores(rewards, mask).tolist() == [0.5, 1.0]


def test_the_same_rewards_in_another_order_give_the_same_score():
    rewards = torch.tensor([[0.1, 0.7, 1e4, -1e4], [1e4, 0.1, -1e4, 0.7], [-1e4, 1e4, 0.7, 0.1]])
    scores = row_scores(rewards, torch.ones(3, 4))
    assert scores.unique().numel() == 1
    naive = rewards[:, 0] + rewards[:, 1] + rewards[:, 2] + rewards[:, 3]
    assert naive.unique().numel() > 1, "float32, one after the other"


def test_pitfall_05_nan_under_the_mask_is_no_reward():
    rewards = torch.tensor([[1.0, math.nan], [math.nan, 1.0]])
    scores = row_scores(rewards, torch.tensor([[1, 0], [1, 0]]))
    assert scores[0] == 1.0
    assert scores[1].isnan(), "a NaN on a valid token is not hidden"


def test_long_rows_are_added_up_in_float64():
    rewards = torch.randn(5, 20_000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(row_scores(rewards, torch.ones_like(rewards)), rewards.double().sum(-1))


def test_spread_gives_valid_tokens_their_rows_number():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 1]])
    advantages, returns = spread(torch.tensor([1.5, math.nan, -2.0]).double(), mask)
    assert advantages.tolist() == [[1.5, 1.5, 0.0], [0.0, 0.0, 0.0], [-2.0, 0.0, -2.0]]
    assert torch.equal(advantages, returns)
