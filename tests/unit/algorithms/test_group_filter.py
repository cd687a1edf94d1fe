import pytest
import torch

from ppo_lightning.algorithms.advantages.grpo import grpo
from ppo_lightning.algorithms.group_filter import rows_with_signal


def test_hand_worked():
    scores = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    group = torch.tensor([0, 1, 0, 1, 2, 2, 3])
    assert rows_with_signal(scores, group).tolist() == [True, False, True, False, False, False, False]


@pytest.mark.parametrize("seed", range(20))
def test_pitfall_25_kept_groups_are_those_with_advantages(seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 3, (24,), generator=generator) * 0.35
    group = torch.randint(0, 7, (24,), generator=generator)
    kept = rows_with_signal(scores, group)
    advantages = grpo(scores.unsqueeze(-1), torch.ones(24, 1), group, norm_adv_by_std_in_grpo=True)[0][:, 0]
    for number in range(7):
        rows = group == number
        assert kept[rows].any() == (advantages[rows] != 0).any()
