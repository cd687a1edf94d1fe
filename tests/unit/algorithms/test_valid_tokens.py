import math

import pytest
import torch

from ppo_lightning.algorithms.valid_tokens import find_valid, reverse_scan

HOLES = torch.tensor([[0, 1, 0, 1, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])


def test_pack_moves_valid_tokens_to_the_head():
    values = torch.arange(15.0).view(3, 5)
    tokens = find_valid(HOLES)
    packed = tokens.pack(values)
    assert packed.tolist() == [[1, 3, 0, 0, 0], [5, 6, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert tokens.packed().tolist() == [[True, True, False, False, False]] * 2 + [[False] * 5]
    assert tokens.unpack(packed).tolist() == (values * HOLES).tolist()


def test_a_reward_on_a_masked_token_goes_to_the_last_valid_one_before():
    rewards = torch.tensor([[9.0, 1.0, 2.0, 4.0, 8.0], [1.0, 0.0, 2.0, 0.0, 4.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    # Row 0: 9 has no token before it; 1 + 2, 4 + 8. Row 1: 1, 0 + 2 + 4. Row 2: nobody to credit.
    assert find_valid(HOLES).pack_rewards(rewards).tolist() == [[3, 12, 0, 0, 0], [1, 6, 0, 0, 0], [0] * 5]
    padded = torch.tensor([[1, 1, 0, 0, 0]])
    assert find_valid(padded).pack_rewards(rewards[1:2]).tolist() == [[1, 6, 0, 0, 0]]


def test_pitfall_05_what_stands_under_the_mask_is_not_read():
    values = torch.where(HOLES.bool(), 1.0, math.nan)
    tokens = find_valid(HOLES)
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
    assert find_valid(torch.zeros(0, 4)).pack(torch.zeros(0, 4)).shape == (0, 4)
