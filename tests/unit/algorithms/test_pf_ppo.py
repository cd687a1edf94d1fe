import pytest
import torch

from ppo_lightning.algorithms.pf_ppo import resample, row_weights
from ppo_lightning.errors import ConfigError

SCORES = torch.tensor([0.0, -2.0, 1.0, 1.0])


def test_weights_by_hand():
    assert row_weights(SCORES, "pow", 2.0).tolist() == pytest.approx([1e-8, 4, 1, 1])
    assert row_weights(SCORES, "max_min").tolist() == pytest.approx([1e-8, 1, 1, 1])
    assert row_weights(SCORES, "max_random").tolist() == pytest.approx([0.1, 0.1, 0.4, 0.4])


def test_extremes_of_all_ranks_decide():
    assert row_weights(SCORES, "max_min", extremes=(-2.0, 5.0)).tolist() == pytest.approx([1e-8, 1, 1e-8, 1e-8])
    assert row_weights(SCORES, "max_random", extremes=(-2.0, 5.0)).tolist() == pytest.approx([0.1] * 4)


def test_rows_are_drawn_in_proportion():
    weights = row_weights(torch.tensor([0.0, 1.0, 2.0] * 3000), "pow", 1.0)
    drawn = resample(weights, torch.Generator().manual_seed(0)) % 3
    shares = drawn.bincount(minlength=3) / 9000
    assert shares[0] == 0
    assert shares[1].item() == pytest.approx(1 / 3, abs=0.02)


def test_a_batch_of_zero_scores_is_drawn_evenly():
    drawn = resample(row_weights(torch.zeros(4000), "pow"), torch.Generator().manual_seed(0))
    assert len(drawn) == 4000
    assert drawn.unique().numel() > 2000


def test_no_rows_and_unknown_method():
    assert resample(torch.zeros(0)).tolist() == []
    with pytest.raises(ConfigError, match=r"algorithm\.pf_ppo_reweight must be one of pow, max_min"):
        row_weights(SCORES, "best")
