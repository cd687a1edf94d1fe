import math

import pytest
import torch

from ppo_lightning.algorithms.advantages.gae import gae
from ppo_lightning.algorithms.masked import whiten


def slow(rewards, values, mask, gamma, lam) -> tuple[torch.Tensor, torch.Tensor]:
    """Walk back over each row's valid tokens."""
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for row in range(len(rewards)):
        next_value = next_advantage = 0.0
        for t in reversed(range(rewards.shape[1])):
            if not mask[row, t]:
                continue
            value = values[row, t].item()
            delta = rewards[row, t].item() + gamma * next_value - value
            next_advantage = delta + gamma * lam * next_advantage
            next_value = value
            advantages[row, t], returns[row, t] = next_advantage, next_advantage + value
    return advantages, returns


def test_hand_worked():
    rewards = torch.tensor([[0.0, 0.0, 1.0, 0.0]])
    values = torch.tensor([[0.5, 0.4, 0.2, 9.0]])
    mask = torch.tensor([[1, 1, 1, 0]])
    advantages, returns = gae(rewards, values, mask, gamma=0.5, lam=0.5)
    # delta = [0 + .5 * .4 - .5, 0 + .5 * .2 - .4, 1 - .2] = [-.3, -.3, .8]
    # A_2 = .8; A_1 = -.3 + .25 * .8 = -.1; A_0 = -.3 + .25 * -.1 = -.325; returns = A + V
    torch.testing.assert_close(returns, torch.tensor([[0.175, 0.3, 1.0, 0.0]]))
    torch.testing.assert_close(advantages, whiten(torch.tensor([[-0.325, -0.1, 0.8, 0.0]]), mask))


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.95), (1.0, 0.0)])
def test_equals_slow_recursion(make_fields, seed, holes, gamma, lam):
    fields = make_fields(seed, torch.arange(6), 8, holes)
    rewards, values, mask = (fields[key] for key in ("token_level_rewards", "values", "response_mask"))
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    raw, expected = slow(rewards, values, mask, gamma, lam)
    torch.testing.assert_close(returns, expected, atol=2e-6, rtol=0)
    torch.testing.assert_close(advantages, whiten(raw, mask), atol=2e-6, rtol=0)


@pytest.mark.parametrize("junk", [100.0, math.nan, math.inf])
@pytest.mark.parametrize("holes", [False, True])
def test_pitfall_21_critic_values_under_the_mask_change_nothing(make_fields, junk, holes):
    fields = make_fields(3, torch.arange(6), 8, holes)
    rewards, values, mask = (fields[key] for key in ("token_level_rewards", "values", "response_mask"))
    clean = gae(rewards, values, mask, 0.9, 0.95)
    dirty = gae(rewards, torch.where(mask.bool(), values, junk), mask, 0.9, 0.95)
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])


def test_pitfall_21_the_naive_way_bootstraps_from_padding():
    # Two tokens and a pad with value 100: the temporal difference of the last token would be 100 - 0.
    values, rewards = torch.tensor([0.0, 0.0, 100.0]), torch.zeros(3)
    naive = rewards[:2] + values[1:] - values[:2]
    assert naive[1] == 100.0
    _, returns = gae(rewards[None], values[None], torch.tensor([[1, 1, 0]]), 1.0, 0.0)
    assert returns.tolist() == [[0.0, 0.0, 0.0]]


def test_pitfall_21_a_reward_on_a_masked_tail_is_credited():
    values, mask = torch.zeros(1, 4), torch.tensor([[1, 1, 0, 0]])
    at_end = gae(torch.tensor([[0.0, 0.0, 0.0, 1.0]]), values, mask, 0.5, 1.0)[1]
    on_last = gae(torch.tensor([[0.0, 1.0, 0.0, 0.0]]), values, mask, 0.5, 1.0)[1]
    assert at_end.tolist() == on_last.tolist() == [[0.5, 1.0, 0.0, 0.0]]


def test_a_row_with_no_valid_token_contributes_nothing():
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 7.0]])
    values, mask = torch.rand(2, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([[1, 1, 1], [0, 0, 0]])
    both, alone = gae(rewards, values, mask, 1.0, 1.0), gae(rewards[:1], values[:1], mask[:1], 1.0, 1.0)
    assert torch.equal(both[0][:1], alone[0])
    assert not both[0][1].any()
    assert not both[1][1].any()
