import math

import pytest
import torch

from ppo_lightning.algorithms import POLICY_LOSSES
from ppo_lightning.algorithms.rollout_correction.correct import correct, needs_minibatch
from ppo_lightning.algorithms.rollout_correction.settings import RULES, read_settings
from ppo_lightning.algorithms.rollout_correction.weights import importance_weights
from ppo_lightning.config.schema import RolloutCorrectionConfig

NAN = float("nan")
LOG2 = math.log(2)
EVERYTHING = {
    "rollout_is": "token",
    "rollout_is_threshold": "1.5",
    "rollout_is_batch_normalize": True,
    "rollout_rs": "token_k1,seq_mean_k3,seq_max_k2",
    "rollout_rs_threshold": "0.5_2.0,0.2,0.4",
}


def settings(**options):
    return read_settings(RolloutCorrectionConfig(**options))


def run(ratios, mask=None, **options):
    """Correct tokens whose engine probability is 1/4 and whose trainer probability is `ratio` times that."""
    ratio = torch.tensor(ratios, dtype=torch.float64)
    engine = torch.full_like(ratio, 0.25).log()
    kept = torch.ones_like(ratio) if mask is None else torch.tensor(mask)
    return correct(engine + ratio.log(), engine, kept, settings(**options))


def value(found, key):
    total, count = found.metrics.means[f"rollout_corr/{key}"]
    return total / count


def random_batch(seed, rows=9, width=6):
    generator = torch.Generator().manual_seed(seed)
    engine = -torch.rand(rows, width, generator=generator, dtype=torch.float64) * 3
    trainer = engine + 0.4 * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    lengths = torch.randint(0, width + 1, (rows, 1), generator=generator)
    return trainer, engine, (torch.arange(width)[None] < lengths).long()


def test_token_weights_are_truncated():
    found = run([[1.0, 4.0, 0.5]], rollout_is="token", rollout_is_threshold="2.0")
    assert found.weights[0].tolist() == pytest.approx([1.0, 2.0, 0.5])
    assert value(found, "rollout_is_mean") == pytest.approx(3.5 / 3)
    assert value(found, "rollout_is_ratio_fraction_high") == pytest.approx(1 / 3)
    assert value(found, "rollout_is_ratio_fraction_low") == 0.0  # 0.5 is not below 1 / 2
    assert value(found, "rollout_is_eff_sample_size") == pytest.approx(3.5**2 / (3 * 5.25))
    assert found.metrics.maxima["rollout_corr/rollout_is_max"] == pytest.approx(2.0)
    assert found.metrics.minima["rollout_corr/rollout_is_min"] == pytest.approx(0.5)


def test_a_band_masks_weights_outside():
    found = run([[1.0, 4.0, 0.4]], rollout_is="token", rollout_is_threshold="0.5_2.0")
    assert found.weights[0].tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert value(found, "rollout_is_oob_ratio") == pytest.approx(2 / 3)


def test_sequence_weights_are_the_product_at_every_token():
    found = run([[1.2, 1.5, 3.0], [2.0, 2.0, 2.0]], [[1, 1, 0], [1, 1, 1]], rollout_is="sequence")
    assert found.weights[0].tolist() == pytest.approx([1.8, 1.8, 0.0])
    assert found.weights[1].tolist() == pytest.approx([2.0, 2.0, 2.0])  # 8, truncated
    assert found.metrics.maxima["rollout_corr/rollout_is_max"] == pytest.approx(8.0)
    assert value(found, "rollout_is_ratio_fraction_high") == 0.5


def test_normalised_weights_have_mean_one():
    token = run([[1.0, 4.0, 1.0]], rollout_is="token", rollout_is_batch_normalize=True)
    assert token.weights[0].tolist() == pytest.approx([0.75, 1.5, 0.75])  # 1, 2, 1 over 4/3
    assert value(token, "rollout_is_batch_norm_factor") == pytest.approx(4 / 3)
    rows = run([[1.0, 1.0], [2.0, 1.0]], [[1, 1], [1, 0]], rollout_is="sequence", rollout_is_batch_normalize=True)
    assert rows.weights.tolist() == [
        pytest.approx([2 / 3, 2 / 3]),
        pytest.approx([4 / 3, 0.0]),
    ]  # rows 1 and 2 over 1.5


@pytest.mark.parametrize(
    ("rule", "threshold", "expected"),
    [
        # Ratios 1, 2, 1/2 in row 0 and 1, 1, 4 in row 1; k1 is -log, k2 log^2 / 2, k3 r - 1 - log r.
        ("token_k1", "0.4_2.5", [[1, 1, 1], [1, 1, 0]]),  # 1/4 is below 0.4
        ("token_k1", "0.6_1.5", [[1, 0, 0], [1, 1, 0]]),
        ("token_k2", "0.5", [[1, 1, 1], [1, 1, 0]]),  # 0.24 and 0.96
        ("token_k3", "0.25", [[1, 0, 1], [1, 1, 0]]),  # 0.31, 0.19, 1.61
        ("seq_sum_k1", "0.5_2.0", [[1, 1, 1], [0, 0, 0]]),  # 0 and -log 4
        ("seq_mean_k1", "0.6_1.5", [[1, 1, 1], [1, 1, 1]]),  # -log(4) / 3 = log 0.63
        ("seq_sum_k2", "0.5", [[1, 1, 1], [0, 0, 0]]),  # 0.48 and 0.96
        ("seq_mean_k3", "0.2", [[1, 1, 1], [0, 0, 0]]),  # 0.167 and 0.54
        ("seq_max_k2", "0.5", [[1, 1, 1], [0, 0, 0]]),
        ("seq_max_k3", "0.25", [[0, 0, 0], [0, 0, 0]]),
        ("token_k1,seq_max_k2", "0.6_1.5,0.5", [[1, 0, 0], [0, 0, 0]]),
    ],
)
def test_rejection_by_hand(rule, threshold, expected):
    found = run([[1.0, 2.0, 0.5], [1.0, 1.0, 4.0]], rollout_rs=rule, rollout_rs_threshold=threshold)
    assert found.response_mask.tolist() == expected
    lost = 1 - sum(map(sum, expected)) / 6
    assert value(found, "rollout_rs_masked_fraction") == pytest.approx(lost)
    assert value(found, "rollout_rs_seq_masked_fraction") == sum(0 in row for row in expected) / 2


def test_rejection_keeps_the_type_and_does_not_touch_the_given_mask():
    mask = [[1, 1, 0]]
    found = run([[1.0, 9.0, 9.0]], mask, rollout_rs="token_k2", rollout_rs_threshold="0.5")
    assert found.response_mask.tolist() == [[1, 0, 0]]
    assert found.response_mask.dtype == torch.int64
    assert mask == [[1, 1, 0]]


def test_the_two_policies_agree():
    found = run([[1.0, 1.0], [1.0, 1.0]], [[1, 1], [1, 0]])
    for key in ("kl", "k3_kl", "chi2_token", "chi2_seq", "log_ppl_diff", "log_ppl_abs_diff"):
        assert value(found, key) == pytest.approx(0.0, abs=1e-12)
    assert value(found, "ppl_ratio") == 1.0
    assert value(found, "training_ppl") == value(found, "rollout_ppl") == pytest.approx(4.0)
    assert found.weights is None


def test_mismatch_by_hand():
    found = run([[2.0, 1.0], [0.5, 7.0]], [[1, 1], [1, 0]])
    assert value(found, "kl") == pytest.approx(0.0)  # -(log 2 + 0 - log 2) / 3
    assert value(found, "k3_kl") == pytest.approx((1 - LOG2 + LOG2 - 0.5) / 3)
    assert value(found, "chi2_token") == pytest.approx((4 + 1 + 0.25) / 3 - 1)
    assert value(found, "chi2_seq") == pytest.approx((4 + 0.25) / 2 - 1)
    assert value(found, "training_log_ppl") == pytest.approx((1.5 * LOG2 + 3 * LOG2) / 2)
    assert value(found, "rollout_log_ppl") == pytest.approx(2 * LOG2)
    assert value(found, "log_ppl_diff") == pytest.approx((-LOG2 / 2 + LOG2) / 2)
    assert found.metrics.maxima["rollout_corr/log_ppl_diff_max"] == pytest.approx(LOG2)
    assert found.metrics.minima["rollout_corr/log_ppl_diff_min"] == pytest.approx(-LOG2 / 2)


@pytest.mark.parametrize("options", [EVERYTHING, EVERYTHING | {"rollout_is": "sequence"}, {}])
def test_pitfall_09_weights_mask_and_metrics_do_not_depend_on_ranks(options, meeting):
    trainer, engine, mask = random_batch(1)
    chosen = settings(**options)
    whole = correct(trainer, engine, mask, chosen)

    def one(rank, all_reduce, gather):
        rows = slice(rank, None, 3)
        return correct(trainer[rows], engine[rows], mask[rows], chosen, all_reduce)

    for rank, found in enumerate(meeting(3).run(one)):
        assert torch.equal(found.response_mask, whole.response_mask[rank::3])
        if whole.weights is not None:
            assert torch.allclose(found.weights, whole.weights[rank::3], atol=1e-12)
        assert found.metrics.means.keys() == whole.metrics.means.keys()
        for key, (total, count) in found.metrics.means.items():
            assert (total / count) == pytest.approx(value(whole, key.removeprefix("rollout_corr/")), abs=1e-9)
        for key, most in found.metrics.maxima.items():
            assert most <= whole.metrics.maxima[key] + 1e-12


def test_pitfall_09_control_a_mean_per_part_gives_other_weights():
    trainer, engine, mask = random_batch(1)
    chosen = settings(rollout_is="token", rollout_is_batch_normalize=True)
    whole = correct(trainer, engine, mask, chosen).weights
    parts = [correct(trainer[rows], engine[rows], mask[rows], chosen).weights for rows in (slice(0, 5), slice(5, 9))]
    assert not torch.allclose(torch.cat(parts), whole, atol=1e-3)


@pytest.mark.parametrize("options", [EVERYTHING, EVERYTHING | {"rollout_is": "sequence"}])
@pytest.mark.parametrize("junk", [NAN, math.inf, -math.inf])
def test_pitfall_05_junk_under_the_mask(options, junk):
    trainer, engine, mask = random_batch(2)
    clean = correct(trainer, engine, mask, settings(**options))
    kept = mask.bool()
    dirty = correct(torch.where(kept, trainer, junk), torch.where(kept, engine, junk), mask, settings(**options))
    assert torch.equal(dirty.weights, clean.weights)
    assert torch.equal(dirty.response_mask, clean.response_mask)
    assert dirty.metrics == clean.metrics


@pytest.mark.parametrize("rule", RULES)
def test_pitfall_04_rows_without_tokens_change_no_metric(rule):
    trainer, engine, mask = random_batch(3)
    full = mask.any(-1)
    assert not full.all()
    options = settings(rollout_is="token", rollout_rs=rule, rollout_rs_threshold="1.2")
    with_empty = correct(trainer, engine, mask, options).metrics
    without = correct(trainer[full], engine[full], mask[full], options).metrics
    assert with_empty.maxima == without.maxima
    assert with_empty.minima == without.minima
    for key, pair in with_empty.means.items():
        assert pair == pytest.approx(without.means[key])


def test_pitfall_03_rejected_tokens_leave_the_counts():
    from ppo_lightning.algorithms.aggregation import count

    found = run([[1.0, 9.0], [9.0, 9.0]], rollout_rs="token_k2", rollout_rs_threshold="0.5")
    assert count(found.response_mask).tolist() == [1.0, 1.0]


def test_no_rows():
    none = torch.zeros(0, 4)
    found = correct(none, none, none, settings(**EVERYTHING))
    assert found.weights.shape == (0, 4)
    assert found.metrics.maxima == {}


def test_weights_carry_no_gradient():
    trainer, engine, mask = random_batch(4)
    found = correct(trainer.requires_grad_(), engine, mask, settings(**EVERYTHING))
    assert not found.weights.requires_grad


def test_bypass_needs_the_mini_batch_only_for_what_is_global():
    vanilla, reinforce = POLICY_LOSSES["vanilla"], POLICY_LOSSES["reinforce"]
    token = settings(rollout_is="token")
    normalised = settings(rollout_is="token", rollout_is_batch_normalize=True)
    rejecting = settings(rollout_rs="token_k2", rollout_rs_threshold="1")
    assert [needs_minibatch(token, loss) for loss in (vanilla, reinforce)] == [False, False]
    assert [needs_minibatch(normalised, loss) for loss in (vanilla, reinforce)] == [False, True]
    assert [needs_minibatch(rejecting, loss) for loss in (vanilla, reinforce)] == [True, True]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_row_local_weights_are_the_same_per_micro_batch(level):
    trainer, engine, mask = random_batch(5)
    chosen = settings(rollout_is=level)
    whole = correct(trainer, engine, mask, chosen).weights
    parts = [importance_weights((trainer - engine)[rows], mask[rows], chosen)[0] for rows in torch.arange(9).split(2)]
    assert torch.equal(torch.cat(parts), whole)


def test_pitfall_32_weights_against_a_truncated_distribution():
    """Sampled from the two likeliest of three tokens: the weight is p / q = 0.8 at each, the kept mass."""
    full = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    kept = full[:2] / full[:2].sum()
    found = correct(full[:2].log()[None], kept.log()[None], torch.ones(1, 2), settings(rollout_is="token"))
    assert found.weights[0].tolist() == pytest.approx([0.8, 0.8])
