"""Blocks of rows: all rows once, and results that do not depend on how many fit a block."""

import math

import pytest
import torch

from ppo_lightning.algorithms import row_blocks as module
from ppo_lightning.algorithms.advantages.gae import gae
from ppo_lightning.algorithms.advantages.optimal_token_baseline import optimal_token_baseline
from ppo_lightning.algorithms.advantages.reinforce_plus_plus import reinforce_plus_plus
from ppo_lightning.algorithms.advantages.remax import remax
from ppo_lightning.algorithms.advantages.tir_optimal_token_baseline import tir_optimal_token_baseline
from ppo_lightning.algorithms.outcome import spread
from ppo_lightning.algorithms.row_blocks import by_blocks, row_blocks

B, R = 12, 6
GROUP = torch.arange(B) // 4


def data(scattered, outcome):
    """Return mask, rewards, values and log-probs; NaN under the mask."""
    torch.manual_seed(0)
    lengths = torch.randint(0, R + 1, (B, 1))
    mask = (torch.arange(R) < lengths).long()
    if scattered:
        mask[B // 2 :, 1] = 0
    rewards = torch.zeros(B, R) if outcome else torch.randn(B, R)
    rewards.scatter_(1, (lengths - 1).clamp(min=0), torch.randn(B, 1))
    values = torch.randn(B, R)
    values[mask == 0] = math.nan
    return mask, rewards, values, torch.rand(B, R).log()


ESTIMATORS = {
    "gae": lambda mask, rewards, values, logs: gae(rewards, values, mask, 0.9, 0.8),
    "reinforce_plus_plus": lambda mask, rewards, values, logs: reinforce_plus_plus(rewards, mask, 1.0),
    "remax": lambda mask, rewards, values, logs: remax(rewards, torch.arange(B).float(), mask),
    "otb": lambda mask, rewards, values, logs: optimal_token_baseline(rewards, mask, GROUP, logs, logs.exp() ** 2),
    "tir": lambda mask, rewards, values, logs: tir_optimal_token_baseline(rewards, mask, GROUP, logs, logs.exp() ** 2),
    "spread": lambda mask, rewards, values, logs: spread(rewards.sum(-1).double(), mask),
}


@pytest.mark.parametrize("outcome", [True, False])
@pytest.mark.parametrize("scattered", [True, False])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_results_do_not_depend_on_the_size_of_a_block(name, scattered, outcome, monkeypatch):
    whole = ESTIMATORS[name](*data(scattered, outcome))
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 5 * R)  # blocks of 5, 5 and 2 rows: groups of 4 are cut
    parts = ESTIMATORS[name](*data(scattered, outcome))
    assert whole[0].isfinite().all()
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_every_row_is_in_one_block(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 4)
    assert [list(range(7))[block] for block in row_blocks(torch.zeros(7, 2))] == [[0, 1], [2, 3], [4, 5], [6]]
    assert len(row_blocks(torch.zeros(3, 9))) == 3  # a row that is wider than a block is one
    assert by_blocks(lambda rows: (rows.sum(-1),), torch.zeros(0, 9))[0].shape == (0,)


def test_a_function_that_looks_across_rows_is_not_for_blocks(monkeypatch):
    values = torch.arange(8.0).reshape(4, 2)
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 4)
    (centred,) = by_blocks(lambda rows: (rows - rows.mean(),), values)
    assert not torch.allclose(centred, values - values.mean())
