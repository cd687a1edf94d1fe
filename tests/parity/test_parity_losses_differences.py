"""Where losses, KL and rollout correction differ from verl on purpose: what verl gives, and that ours is right.

What verl gives was recorded by the oracle (`evidence` in generate_losses.py).
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ppo_lightning.algorithms import POLICY_LOSSES
from ppo_lightning.algorithms.aggregation import LossCounts, aggregate
from ppo_lightning.algorithms.kl import K3_HIGHEST, K3_LOWEST, k3_clamped, kl, row_mean
from ppo_lightning.algorithms.kl_control import AdaptiveKLController
from ppo_lightning.algorithms.policy_losses.arguments import loss_arguments
from ppo_lightning.algorithms.policy_losses.covariance import Scope
from ppo_lightning.algorithms.rollout_correction.correct import correct
from ppo_lightning.algorithms.rollout_correction.settings import read_settings
from ppo_lightning.algorithms.tables import resolve
from ppo_lightning.config.schema import ActorConfig, RolloutCorrectionConfig

sys.path.insert(0, str(Path(__file__).parent))
from test_parity_losses import GOLDEN

COMPARISONS: list[tuple[str, str, object]] = []
DIFFERENCES = [
    (
        "kl.kl",
        "k3 is flat where its value is limited to 10 (log-ratio beyond -11.0 and 2.61)",
        "same value, and the slope at the limit as gradient; the share of limited tokens is a metric",
        "the KL loss must pull hardest where the policy is furthest away",
    ),
    (
        "aggregation.aggregate",
        "a NaN at a masked position makes the sequence modes NaN, and through an advantage every mode's gradient",
        "masked positions reach neither value nor gradient",
        "what stands under the mask is not data",
    ),
    ("aggregation.aggregate", "no valid token gives 0/0 = NaN", "0, connected to the graph", "the update is skipped"),
    (
        "aggregation.aggregate",
        "without loss_scale_factor seq-mean-token-sum-norm divides by the width of the micro-batch",
        "the constant must be given; the trainer gives response_tokens",
        "a loss must not change when padding is trimmed",
    ),
    (
        "policy_losses.geo_mean.geo_mean",
        "plain mean over the rows of the micro-batch: empty rows count, global counts and dp_size are ignored",
        "mean over the rows with tokens of the global mini-batch",
        "splits and ranks must not change the loss",
    ),
    (
        "policy_losses.geo_mean.geo_mean",
        "clip fractions count log-ratios outside the band on either side",
        "only where the advantage's sign makes the bound bite",
        "a log-ratio of -1 with a positive advantage is not clipped",
    ),
    (
        "policy_losses.clip_cov, kl_cov, geo_mean",
        "exp of the bare log-ratio overflows",
        "the exponent is limited to +-20, as in the vanilla loss",
        "one token must not make the loss infinite",
    ),
    (
        "policy_losses.clip_cov.selection, kl_cov.selection",
        "tokens are selected per micro-batch, clip_cov's with the global generator",
        "selected once over the global mini-batch, drawn by (seed, row id, position); ties go to the lowest",
        "the selection must not depend on splits, ranks or row order",
    ),
    (
        "kl.row_mean",
        "rows without tokens enter actor/reward_kl_penalty and the adaptive controller as 0",
        "they count nowhere",
        "aborted rows say nothing about the policy",
    ),
    (
        "kl_control.AdaptiveKLController",
        "a NaN makes the coefficient NaN for good",
        "NaN and 'no tokens' leave it alone",
        "one broken step must not end the run unseen",
    ),
    (
        "policy_losses.arguments.loss_arguments",
        "actor.clip_ratio does nothing: clip_ratio_low and _high default to 0.2",
        "they default to null, which takes clip_ratio",
        "an option must have an effect",
    ),
    (
        "rollout_correction.correct",
        "rows without tokens enter the row metrics (perplexity 1, weight 0, not rejected)",
        "they count nowhere",
        "aborted rows say nothing about the policies",
    ),
    (
        "rollout_correction.correct",
        "k3_kl overflows above a log-ratio of 88",
        "the exponent is limited to +-20, as in the weights",
        "one token must not blank the metric",
    ),
    (
        "rollout_correction.correct",
        "ZeroDivisionError when a band leaves no weight",
        "weights of 0, effective sample size 0",
        "a diagnostic must not end the run",
    ),
    (
        "rollout_correction.correct",
        "ValueError when no token is valid",
        "nothing to correct, metrics absent",
        "a step of aborted rows is a step",
    ),
    (
        "policy_losses.gpg.gpg",
        "no metrics",
        "actor/ppo_kl",
        "the drift from the old policy is worth seeing whatever the loss",
    ),
]


def verl(name):
    return GOLDEN[f"evidence_{name}"]


def minus_one(mask, **changes):
    """Return log-probabilities of -1, advantages of 1 and a mask, with some of the three replaced."""
    old = torch.full(mask.shape, -1.0, dtype=torch.float64)
    given = {"old_log_prob": old, "log_prob": old.clone(), "advantages": torch.ones_like(old)} | changes
    given["log_prob"].requires_grad_()
    return given | {"response_mask": mask}


BAND = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}


def test_difference_01_k3_keeps_a_gradient():
    assert verl("k3").tolist() == pytest.approx([10.0, 0.10653066, 10.0, 0.0, 0.39346934, 0.0])
    far = torch.tensor([[-3.0, 0.5, 12.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, 3, dtype=torch.long)
    values = kl(far, torch.zeros_like(far), mask, "low_var_kl")
    values.sum().backward()
    assert values[0].tolist() == pytest.approx([10.0, 0.10653066, 10.0])
    assert far.grad[0].tolist() == pytest.approx([1 - np.exp(K3_HIGHEST), 0.39346934, 1 - np.exp(K3_LOWEST)])
    assert k3_clamped(far, torch.zeros_like(far), mask, "low_var_kl").tolist() == [[1.0, 0.0, 1.0]]


def test_difference_02_nan_under_the_mask():
    assert np.isnan(verl("nan_row_mean"))
    assert np.isnan(verl("nan_gradient")).any()
    mask = torch.tensor([[1, 0], [1, 1]])
    loss = torch.tensor([[1.0, torch.nan], [3.0, 5.0]], requires_grad=True)
    value = aggregate(loss, mask, "seq-mean-token-mean", LossCounts(3, 2))
    value.backward()
    assert value.item() == pytest.approx(2.5)  # (1 + (3 + 5) / 2) / 2
    assert loss.grad.tolist() == [[0.5, 0.0], [0.25, 0.25]]
    advantages = torch.tensor([[1.0, torch.nan], [1.0, 1.0]], dtype=torch.float64)
    given = minus_one(mask, advantages=advantages)
    token_loss, _ = resolve(POLICY_LOSSES["vanilla"].path)(**given, **BAND, clip_ratio_c=3.0)
    aggregate(token_loss, mask, "token-mean", LossCounts(3, 2)).backward()
    assert given["log_prob"].grad.flatten().tolist() == pytest.approx([-1 / 3, 0.0, -1 / 3, -1 / 3])


def test_difference_03_no_valid_token():
    assert np.isnan(verl("empty"))
    loss = torch.ones(2, 2, requires_grad=True)
    value = aggregate(loss, torch.zeros(2, 2), "token-mean", LossCounts(0, 0))
    value.backward()
    assert value.item() == 0.0
    assert loss.grad.abs().sum() == 0.0


def test_difference_04_trimming_does_not_change_the_norm():
    assert verl("horizon").tolist() == [1.0, 0.5]
    for width in (2, 4):
        loss, mask = torch.ones(1, width), torch.arange(width)[None] < 2
        assert aggregate(loss, mask, "seq-mean-token-sum-norm", LossCounts(2, 1), horizon=4).item() == 0.5
    with pytest.raises(AssertionError, match="horizon"):
        aggregate(loss, mask, "seq-mean-token-sum-norm", LossCounts(2, 1))


def geo(mask, counts):
    given = minus_one(mask, log_prob=torch.tensor([[0.0, -1.0], [-1.0, -1.0]], dtype=torch.float64))
    token_loss, _ = resolve(POLICY_LOSSES["geo_mean"].path)(**given, **BAND)
    return aggregate(token_loss, mask, "seq-mean-token-mean", counts).item()


def test_difference_05_geo_mean_uses_global_rows():
    # Row 0: log-ratios 1 (bounded to 0.2) and 0, so -exp(0.1); row 1: -exp(0).
    first = -np.exp(0.1)
    assert verl("geo_empty_row") == pytest.approx(first / 2)
    assert geo(torch.tensor([[1, 1], [0, 0]]), LossCounts(2, 1)) == pytest.approx(first)
    assert verl("geo_counts").tolist() == pytest.approx([(first - 1) / 2] * 2)
    full = torch.ones(2, 2)
    assert geo(full, LossCounts(8, 4, 1)) == pytest.approx((first - 1) / 4)
    assert geo(full, LossCounts(8, 4, 2)) == pytest.approx((first - 1) / 2)


def test_difference_06_geo_mean_clip_fraction():
    assert verl("geo_clipfrac") == 1.0
    one = torch.ones(1, 1)
    given = minus_one(one, log_prob=torch.tensor([[-2.0]], dtype=torch.float64))
    _, metrics = resolve(POLICY_LOSSES["geo_mean"].path)(**given, **BAND)
    assert metrics["actor/pg_clipfrac"].item() == 0.0
    assert metrics["actor/pg_clipfrac_lower"].item() == 0.0


def test_difference_07_no_overflow():
    assert np.isinf(verl("overflow")).all()
    one = torch.ones(1, 1)
    tokens = {"old_log_prob": torch.tensor([[-800.0]]), "advantages": torch.tensor([[-1.0]])}
    given = minus_one(one, log_prob=torch.zeros(1, 1), **tokens)
    none = torch.zeros(1, 1, dtype=torch.bool)
    clip, _ = resolve(POLICY_LOSSES["clip_cov"].path)(**given, selection=none, **BAND)
    penal, _ = resolve(POLICY_LOSSES["kl_cov"].path)(**given, selection=none, ppo_kl_coef=0.1)
    mean, _ = resolve(POLICY_LOSSES["geo_mean"].path)(**given, **BAND)
    assert [clip.item(), penal.item(), mean.item()] == pytest.approx([np.exp(20)] * 3)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_difference_08_selection_over_the_mini_batch(name):
    random = np.random.RandomState(0)
    new = torch.tensor(-random.exponential(1.0, (8, 16)))
    given = {
        "old_log_prob": new,
        "log_prob": new,
        "advantages": torch.tensor(random.randn(8, 16)),
        "response_mask": torch.ones(8, 16),
    }
    select = resolve(POLICY_LOSSES[name].selection)
    chosen = {"clip_cov_ratio": 0.1, "clip_cov_lb": -0.5, "clip_cov_ub": 2.0, "kl_cov_ratio": 0.1}
    options = loss_arguments(select, ActorConfig(loss_options=chosen))
    whole = select(**given, scope=Scope(seed=7), **options)
    order = torch.tensor([5, 2, 7, 0, 1, 6, 4, 3])
    shuffled = select(**{key: value[order] for key, value in given.items()}, scope=Scope(rows=order, seed=7), **options)
    assert whole.sum() == 12  # 0.1 * 128
    assert torch.equal(shuffled, whole[order])
    halves = [
        select(**{key: value[half] for key, value in given.items()}, scope=Scope(seed=7), **options)
        for half in (slice(0, 4), slice(4, 8))
    ]
    assert not torch.equal(torch.cat(halves), whole)


def test_difference_09_reward_kl_without_empty_rows():
    assert verl("reward_kl") == 0.5
    total, rows = row_mean(torch.ones(2, 2), torch.tensor([[1, 1], [0, 0]]))
    assert (total, rows) == (1.0, 1.0)


def test_difference_10_controller_survives_nan():
    assert np.isnan(verl("controller"))
    controller = AdaptiveKLController(0.1, 0.1, 100)
    controller.update(float("nan"), 10)
    controller.update(None, 10)
    assert controller.value == 0.1


def test_difference_11_clip_ratio_has_an_effect():
    assert verl("clip_ratio") == pytest.approx(-1.2)  # ratio 1.4 is clipped at 1.2 although clip_ratio is 0.5
    function = resolve(POLICY_LOSSES["vanilla"].path)
    options = loss_arguments(function, ActorConfig(clip_ratio=0.5))
    given = minus_one(torch.ones(1, 1), log_prob=torch.tensor([[-1 + np.log(1.4)]]))
    assert function(**given, **options)[0].item() == pytest.approx(-1.4)


def halves():
    half = torch.full((2, 2), np.log(0.5), dtype=torch.float64)
    return half, 2 * half


def test_difference_12_rows_without_tokens_count_nowhere():
    assert verl("empty_row_metrics").tolist() == pytest.approx([1.5, 7.5, 1.0, 0.0])
    assert verl("empty_row_rejected") == 0.5
    settings = read_settings(
        RolloutCorrectionConfig(rollout_is="token", rollout_rs="token_k2", rollout_rs_threshold="0.01")
    )
    found = correct(*halves(), torch.tensor([[1, 1], [0, 0]]), settings).metrics
    means = {key.removeprefix("rollout_corr/"): total / count for key, (total, count) in found.means.items()}
    # Ratio 2 at both tokens of the only row: perplexity 2, chi-square 4^2 - 1, weight 2, rejected.
    assert means["training_ppl"] == pytest.approx(2.0)
    assert means["chi2_seq"] == pytest.approx(15.0)
    assert means["rollout_is_seq_mean"] == pytest.approx(2.0)
    assert found.minima["rollout_corr/rollout_is_seq_min"] == pytest.approx(2.0)
    assert means["rollout_rs_seq_masked_fraction"] == 1.0


def test_difference_13_k3_kl_is_finite():
    assert np.isinf(verl("k3_kl"))
    found = correct(
        torch.full((1, 1), 100.0), torch.zeros(1, 1), torch.ones(1, 1), read_settings(RolloutCorrectionConfig())
    )
    total, count = found.metrics.means["rollout_corr/k3_kl"]
    assert total / count == pytest.approx(np.exp(20) - 101)


def test_difference_14_a_band_that_leaves_nothing():
    assert verl("nothing_left") == 1.0
    settings = read_settings(RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold="0.9_1.1"))
    found = correct(*halves(), torch.tensor([[1, 0], [1, 1]]), settings)
    assert found.weights.abs().sum() == 0
    assert found.metrics.means["rollout_corr/rollout_is_eff_sample_size"] == (0.0, 3.0)


def test_difference_15_no_tokens():
    assert verl("no_tokens") == 1.0
    settings = read_settings(
        RolloutCorrectionConfig(
            rollout_is="sequence", rollout_is_batch_normalize=True, rollout_rs="seq_sum_k1", rollout_rs_threshold="2"
        )
    )
    found = correct(*halves(), torch.zeros(2, 2, dtype=torch.long), settings)
    assert found.weights.abs().sum() == 0
    assert found.response_mask.sum() == 0
    assert {count for key, (_, count) in found.metrics.means.items() if "factor" not in key} == {0.0}
    assert found.metrics.maxima == {}


def test_difference_16_gpg_reports_its_drift():
    given = minus_one(torch.ones(1, 1), log_prob=torch.tensor([[-1.5]], dtype=torch.float64))
    _, metrics = resolve(POLICY_LOSSES["gpg"].path)(**given)
    assert metrics["actor/ppo_kl"].item() == 0.5
