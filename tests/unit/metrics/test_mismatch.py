import math

import numpy as np
import pytest
import torch

from ppo_lightning.metrics.mismatch import mismatch_metrics
from ppo_lightning.metrics.values import MetricBook


def compute(function, batch):
    book = MetricBook()
    function(batch, book)
    return book.compute()


def logs(*probs):
    return torch.tensor(probs).log()


def test_worked_example(make_batch):
    batch = make_batch(
        [2, 1],
        width=2,
        old_log_probs=logs([0.5, 0.25], [0.75, 0.9]),
        rollout_log_probs=logs([0.5, 0.5], [0.5, 0.1]),
    )
    found = compute(mismatch_metrics, batch)
    assert found["training/rollout_probs_diff_valid"] == 1.0
    # differences 0, 0.25, 0.25: mean 1/6, deviation sqrt((1/36 + 2/144) / 2)
    assert found["training/rollout_probs_diff_max"] == pytest.approx(0.25)
    assert found["training/rollout_probs_diff_mean"] == pytest.approx(1 / 6)
    assert found["training/rollout_probs_diff_std"] == pytest.approx(math.sqrt((1 / 36 + 2 / 144) / 2))
    assert "training/rollout_actor_probs_pearson_corr" not in found  # the engine's are all 0.5


def test_correlation_over_ranks_is_that_of_all_tokens(make_batch, over_ranks):
    batch = make_batch([5, 3, 0, 1, 4])
    mask = batch.batch["response_mask"].bool()
    engine, trainer = (batch.batch[key][mask].double().exp().numpy() for key in ("rollout_log_probs", "old_log_probs"))
    books = MetricBook(), MetricBook()
    mismatch_metrics(batch[:1], books[0])
    mismatch_metrics(batch[1:], books[1])
    found = over_ranks(*books)
    assert found["training/rollout_actor_probs_pearson_corr"] == pytest.approx(np.corrcoef(engine, trainer)[0, 1])
    assert found["training/rollout_probs_diff_std"] == pytest.approx(np.abs(engine - trainer).std(ddof=1))
    own = [np.corrcoef(engine[:5], trainer[:5])[0, 1], np.corrcoef(engine[5:], trainer[5:])[0, 1]]
    assert abs(np.mean(own) - np.corrcoef(engine, trainer)[0, 1]) > 1e-3  # the mean of the ranks' is another number


def test_pitfall_22_without_tokens_only_valid_is_there(make_batch):
    assert compute(mismatch_metrics, make_batch([0, 0])) == {"training/rollout_probs_diff_valid": 0.0}


def test_agreement_is_zero_distance(make_batch):
    batch = make_batch([5, 3])
    batch.batch["rollout_log_probs"] = batch.batch["old_log_probs"].clone()
    found = compute(mismatch_metrics, batch)
    assert found["training/rollout_probs_diff_max"] == 0.0
    assert found["training/rollout_actor_probs_pearson_corr"] == pytest.approx(1.0)
