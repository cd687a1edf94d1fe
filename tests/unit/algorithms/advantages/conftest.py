import pytest
import torch

from ppo_lightning.algorithms import ADVANTAGES
from ppo_lightning.algorithms.tables import resolve

OPTIONS = {
    "gamma": 0.9,
    "lam": 0.8,
    "norm_adv_by_std_in_grpo": True,
    "gdpo_reward_weights": [1.0, 0.5],
    "handle_zero_tail": True,
    "f_norm": 1.0,
}


def random_fields(seed: int, group: torch.Tensor, width: int, holes: bool = False) -> dict[str, torch.Tensor]:
    """Make every field that an estimator may read; some rows have no valid token."""
    generator = torch.Generator().manual_seed(seed)
    rows = len(group)
    lengths = torch.randint(0, width + 1, (rows, 1), generator=generator)
    mask = torch.arange(width) < lengths
    if holes:
        mask &= torch.rand(rows, width, generator=generator) < 0.6
    chosen = torch.rand(rows, width, generator=generator) * 0.9 + 0.05
    return {
        "token_level_rewards": torch.randn(rows, width, generator=generator) * mask,
        "values": torch.randn(rows, width, generator=generator),
        "response_mask": mask.long(),
        "group": group,
        "reward_baselines": torch.rand(rows, generator=generator),
        "old_log_probs": chosen.log(),
        "sum_pi_squared": chosen.square() + torch.rand(rows, width, generator=generator) * (1 - chosen).square(),
        "rollout_is_weights": torch.rand(rows, width, generator=generator) + 0.5,
        "reward_parts": torch.randn(rows, 2, generator=generator).double(),
    }


def estimate(name: str, fields: dict, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """Call an estimator by its table entry, as the advantage stage does."""
    entry = ADVANTAGES[name]
    given = {**OPTIONS, **options, **fields}
    keys = [*entry.reads, *entry.options, *entry.optional, *(["all_reduce"] if "all_reduce" in options else [])]
    return resolve(entry.path)(**{key: given[key] for key in keys})


@pytest.fixture
def make_fields():
    return random_fields


@pytest.fixture
def call():
    return estimate
