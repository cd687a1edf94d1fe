import math

import pytest
import torch

from ppo_lightning.algorithms.masked import keep_bits
from ppo_lightning.algorithms.valid_tokens import find_valid, reverse_scan

HOLES = torch.tensor([[0, 1, 0, 1, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])


def test_pack_moves_valid_tokens_to_the_head():
    values = torch.arange(15.0).view(3, 5)
    tokens = find_valid(keep_bits(HOLES))
    packed = tokens.pack(values)
    assert packed.tolist() == [[1, 3, 0, 0, 0], [5, 6, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert tokens.packed().tolist() == [[-1, -1, 0, 0, 0]] * 2 + [[0] * 5]
    assert tokens.unpack(packed).tolist() == (values * HOLES).tolist()


def test_a_reward_on_a_masked_token_goes_to_the_last_valid_one_before():
    rewards = torch.tensor([[9.0, 1.0, 2.0, 4.0, 8.0], [1.0, 0.0, 2.0, 0.0, 4.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    # Row 0: 9 has no token before it; 1 + 2, 4 + 8. Row 1: 1, 0 + 2 + 4. Row 2: nobody to credit.
    assert find_valid(keep_bits(HOLES)).pack_rewards(rewards).tolist() == [[3, 12, 0, 0, 0], [1, 6, 0, 0, 0], [0] * 5]
    padded = torch.tensor([[1, 1, 0, 0, 0]])
    assert find_valid(keep_bits(padded)).pack_rewards(rewards[1:2]).tolist() == [[1, 6, 0, 0, 0]]


def test_pitfall_05_what_stands_under_the_mask_is_not_read():
    values = torch.where(HOLES.bool(), 1.0, math.nan)
    tokens = find_valid(keep_bits(HOLES))
    assert tokens.pack(values).sum() == 4.0
    assert tokens.pack_rewards(values).sum() == 4.0


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("width", [1, 2, 9])
def test_scan_equals_a_loop(decay, width):
    values = torch.randn(4, width, generator=torch.Generator().manual_seed(width))
    before = values.clone()
    expected = torch.zeros(4, width)
    for row in range(4):
        after = 0.0
        for t in reversed(range(width)):
            after = values[row, t].item() + decay * after
            expected[row, t] = after
    torch.testing.assert_close(reverse_scan(values, decay), expected, atol=1e-6, rtol=0)
    assert torch.equal(values, before), "the input is left alone"


def test_no_columns_and_no_rows():
    assert reverse_scan(torch.zeros(3, 0), 0.9).shape == (3, 0)
    assert find_valid(keep_bits(torch.zeros(0, 4))).pack(torch.zeros(0, 4)).shape == (0, 4)


def test_one_reward_a_row_is_all_that_any_of_its_tokens_has_to_go():
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    rewards = torch.tensor([[0, 0, 0.3, 0], [-2.0, 0, 0, 0], [0, 0, 0, 0.7], [5.0, 0, 0, 0]])
    tokens = find_valid(keep_bits(mask))
    third, last = rewards[0, 2].item(), rewards[2, 3].item()
    expected = [[third] * 3 + [0], [-2, 0, 0, 0], [last] * 4, [0] * 4]  # the last row has nobody to credit
    assert tokens.rewards_to_go(rewards, 1.0).tolist() == expected
    assert torch.equal(tokens.rewards_to_go(rewards, 1.0), reverse_scan(tokens.pack_rewards(rewards), 1.0))


CORNERS = {
    "on the last token": ([1, 1, 1, 0], [0, 0, 2, 0], [2, 2, 2, 0]),
    "on an earlier token too": ([1, 1, 1, 0], [1, 0, 2, 0], [3, 2, 2, 0]),
    "on padding": ([1, 1, 0, 0], [0, 1, 0, 4], [5, 5, 0, 0]),
    "on padding only": ([1, 1, 0, 0], [0, 0, 0, 4], [4, 4, 0, 0]),
    "NaN on padding": ([1, 1, 0, 0], [0, 1, math.nan, 4], [5, 5, 0, 0]),
    "opposite ones that add up to nothing": ([1, 1, 1, 0], [1, -1, 2, 0], [2, 1, 2, 0]),
    "no valid token": ([0, 0, 0, 0], [3, 0, 0, 4], [0, 0, 0, 0]),
    "between tool tokens": ([1, 0, 1, 0], [0, 4, 2, 0], [6, 2, 0, 0]),
}


@pytest.mark.parametrize("corner", CORNERS)
def test_rewards_to_go_wherever_the_rewards_are(corner):
    mask, rewards, expected = CORNERS[corner]
    # A second row with one reward: what is short for one row must not be taken for all.
    both = torch.tensor([rewards, [0, 0, 0, 1]], dtype=torch.float32)
    found = find_valid(keep_bits(torch.tensor([mask, [1, 1, 1, 1]]))).rewards_to_go(both, 1.0)
    assert found.tolist() == [expected, [1, 1, 1, 1]]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.97])
@pytest.mark.parametrize("corner", CORNERS)
def test_discounted_rewards_to_go_wherever_the_rewards_are(corner, gamma):
    mask, rewards, _ = CORNERS[corner]
    both = torch.tensor([rewards, [0, 0, 0, 2]], dtype=torch.float32)
    tokens = find_valid(keep_bits(torch.tensor([mask, [1, 1, 1, 1]])))
    expected = [[0.0] * 4, [0.0] * 4]
    for row, credited in enumerate(tokens.pack_rewards(both).tolist()):
        after = 0.0
        for t in reversed(range(4)):
            after = expected[row][t] = credited[t] + gamma * after
    torch.testing.assert_close(tokens.rewards_to_go(both, gamma), torch.tensor(expected), atol=1e-6, rtol=0)


def test_discounts_begin_at_the_last_token_of_each_row():
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    rewards = torch.tensor([[0, 0, 4.0, 0], [-2.0, 0, 0, 0], [0, 0, 0, 8.0], [5.0, 0, 0, 0]])
    found = find_valid(keep_bits(mask)).rewards_to_go(rewards, 0.5)
    assert found.tolist() == [[1, 2, 4, 0], [-2, 0, 0, 0], [1, 2, 4, 8], [0] * 4]


def test_a_nan_reward_stays_visible():
    found = find_valid(keep_bits(torch.tensor([[1, 1, 0]]))).rewards_to_go(torch.tensor([[0, math.nan, 0]]), 1.0)
    assert found[0, :2].isnan().all()
    assert found[0, 2] == 0
