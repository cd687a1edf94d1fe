"""Each loss on tokens worked by hand and against a plain-Python form, token by token."""

import math

import pytest
import torch

from ppo_lightning.algorithms import POLICY_LOSSES
from ppo_lightning.algorithms.tables import resolve
from ppo_lightning.errors import ConfigError

LOW, HIGH, CEILING, BETA, COEF = 0.2, 0.3, 2.0, 0.7, 0.4
BAND = {"clip_ratio_low": LOW, "clip_ratio_high": HIGH}
CASES = [(ratio, advantage) for ratio in (0.1, 0.5, 0.9, 1.0, 1.2, 1.5, 2.5) for advantage in (-1.5, -1.0, 0.0, 2.0)]
P_OLD = 0.35


def clip(ratio):
    return min(max(ratio, 1 - LOW), 1 + HIGH)


def vanilla(ratio, advantage, p):
    loss = max(-advantage * ratio, -advantage * clip(ratio))
    return min(loss, -advantage * CEILING) if advantage < 0 else loss


def clip_cov(ratio, advantage, p):
    return max(-advantage * ratio, -advantage * clip(ratio))


def sapo(ratio, advantage, p):
    tau = 1.0 if advantage > 0 else 1.05
    return -advantage * 4 / tau / (1 + math.exp(-tau * (ratio - 1)))


def gpg(ratio, advantage, p):
    return -advantage * math.log(p)


def dro(ratio, advantage, p):
    return -advantage * math.log(p) + BETA / 2 * math.log(ratio) ** 2


def cispo(ratio, advantage, p):
    return -clip(ratio) * advantage * math.log(p)


def kl_cov(ratio, advantage, p):
    return -advantage * ratio + COEF * abs(math.log(ratio))


def dppo_tv(ratio, advantage, p):
    inside = p - P_OLD <= HIGH if advantage > 0 else P_OLD - p <= LOW
    return -advantage * min(ratio, CEILING) * math.log(p) * inside


def dppo_kl(ratio, advantage, p):
    divergence = P_OLD * math.log(P_OLD / p) + (1 - P_OLD) * math.log((1 - P_OLD) / (1 - p))
    inside = divergence <= HIGH or p <= P_OLD if advantage > 0 else divergence <= LOW or p >= P_OLD
    return -advantage * min(ratio, CEILING) * math.log(p) * inside


OPTIONS = {
    "vanilla": BAND | {"clip_ratio_c": CEILING},
    "clip_cov": BAND | {"selection": torch.zeros(1, len(CASES), dtype=torch.bool)},
    "sapo": {},
    "gpg": {},
    "reinforce": {},
    "dro": {"dro_beta": BETA},
    "cispo": BAND,
    "kl_cov": {"ppo_kl_coef": COEF, "selection": torch.ones(1, len(CASES), dtype=torch.bool)},
    "dppo_tv": BAND | {"clip_ratio_c": CEILING},
    "dppo_kl": BAND | {"clip_ratio_c": CEILING},
}
SLOW = {
    "vanilla": vanilla,
    "clip_cov": clip_cov,
    "sapo": sapo,
    "gpg": gpg,
    "reinforce": gpg,
    "dro": dro,
    "cispo": cispo,
    "kl_cov": kl_cov,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
}


def tokens(ratios, advantages, old=P_OLD):
    ratio = torch.tensor([ratios], dtype=torch.float64)
    before = torch.full_like(ratio, old).log()
    return {
        "old_log_prob": before,
        "log_prob": before + ratio.log(),
        "advantages": torch.tensor([advantages], dtype=torch.float64),
        "response_mask": torch.ones_like(ratio),
    }


def run(name, given, **options):
    return resolve(POLICY_LOSSES[name].path)(**given, **options)


@pytest.mark.parametrize("name", sorted(SLOW))
def test_equals_the_slow_form(name):
    loss, _ = run(name, tokens(*zip(*CASES, strict=True)), **OPTIONS[name])
    expected = [SLOW[name](ratio, advantage, ratio * P_OLD) for ratio, advantage in CASES]
    assert loss[0].tolist() == pytest.approx(expected, abs=1e-7)


def test_every_loss_has_a_test_by_hand():
    assert set(POLICY_LOSSES) == set(SLOW) | {"gspo", "geo_mean"}


def test_vanilla_by_hand():
    ratios, advantages = [1.5, 1.5, 0.5, 0.5, 2.5], [1.0, -1.0, 1.0, -1.0, -1.0]
    loss, metrics = run("vanilla", tokens(ratios, advantages), **OPTIONS["vanilla"])
    # 1.5 is cut to 1.3 for A = 1; counts in full for A = -1; 0.5 counts for A = 1, is raised to 0.8 for A = -1;
    # 2.5 with A = -1 is cut by the ceiling of 2.
    assert loss[0].tolist() == pytest.approx([-1.3, 1.5, -0.5, 0.8, 2.0])
    assert metrics["actor/pg_clipfrac"][0].tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert metrics["actor/pg_clipfrac_lower"][0].tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert metrics["actor/ppo_kl"][0].tolist() == pytest.approx([-math.log(ratio) for ratio in ratios])


def test_vanilla_stops_the_gradient_where_it_clips():
    given = tokens([1.5, 1.5, 0.5, 0.5, 2.5, 1.0], [1.0, -1.0, 1.0, -1.0, -1.0, 1.0])
    given["log_prob"].requires_grad_()
    run("vanilla", given, **OPTIONS["vanilla"])[0].sum().backward()
    assert given["log_prob"].grad[0].tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0, 0.0, -1.0])


def test_vanilla_needs_a_ceiling_above_one():
    with pytest.raises(ConfigError, match=r"actor\.clip_ratio_c must be above 1 - got 1\.0"):
        run("vanilla", tokens([1.0], [1.0]), **BAND, clip_ratio_c=1.0)


@pytest.mark.parametrize("name", ["vanilla", "gspo"])
def test_pitfall_29_a_ratio_outside_the_band_may_not_be_clipped(name):
    options = OPTIONS["vanilla"] if name == "vanilla" else BAND
    for ratio, advantage, expected in (
        (1.5, -1.0, 0.0),
        (1.5, 1.0, 1.0),
        (0.5, 1.0, 0.0),
        (0.5, -1.0, 1.0),
        (1.5, 0.0, 0.0),
    ):
        _, metrics = run(name, tokens([ratio], [advantage]), **options)
        assert metrics["actor/pg_clipfrac"].item() == expected
    naive = abs(1.5 - 1) > HIGH  # the fault: outside the band, whatever the advantage
    assert naive


@pytest.mark.parametrize(
    ("ratio", "advantage", "above", "below"), [(1.5, -1.0, 0, 0), (1.5, 1.0, 1, 0), (0.5, -1.0, 0, 1)]
)
def test_pitfall_29_in_geo_mean(ratio, advantage, above, below):
    _, metrics = run("geo_mean", tokens([ratio], [advantage]), **BAND)
    assert metrics["actor/pg_clipfrac"].item() == above
    assert metrics["actor/pg_clipfrac_lower"].item() == below


def test_gspo_by_hand():
    given = tokens([1.44, 1.0, 7.0], [1.0, -1.0, 1.0])
    given["response_mask"] = torch.tensor([[1, 1, 0]])
    given["log_prob"].requires_grad_()
    loss, metrics = run("gspo", given, clip_ratio_low=0.2, clip_ratio_high=0.3)
    loss.sum().backward()
    # The geometric mean of 1.44 and 1 is 1.2; both tokens carry it, each with its own gradient.
    assert loss[0].tolist() == pytest.approx([-1.2, 1.2, 0.0])
    assert given["log_prob"].grad[0].tolist() == pytest.approx([-1.2, 1.2, 0.0])
    assert metrics["actor/ppo_kl"][0].tolist() == pytest.approx([-math.log(1.44), 0.0, 0.0])


def test_geo_mean_by_hand():
    given = tokens([math.exp(1.0), math.exp(-0.1), 9.0], [2.0, 2.0, 0.0])
    given["response_mask"] = torch.tensor([[1, 1, 0]])
    given["log_prob"].requires_grad_()
    loss, _ = run("geo_mean", given, **BAND)
    loss.mean().backward()
    # Log-ratios 1 (bounded to 0.3) and -0.1: the mean is 0.1, A is 2.
    assert loss[0].tolist() == pytest.approx([-2 * math.exp(0.1), -2 * math.exp(0.1), 0.0])
    # Two of three equal entries, each -A exp(m) with slope 1/2 towards the unbounded token.
    assert given["log_prob"].grad[0].tolist() == pytest.approx([0.0, 2 / 3 * -2 * math.exp(0.1) / 2, 0.0])


def test_geo_mean_weights_enter_by_their_geometric_mean():
    given = tokens([1.0, 1.0], [1.0, 1.0]) | {"rollout_is_weights": torch.tensor([[4.0, 1.0]], dtype=torch.float64)}
    assert run("geo_mean", given, **BAND)[0][0].tolist() == pytest.approx([-2.0, -2.0])


def test_clip_cov_selected_tokens_leave_the_loss():
    given = tokens([1.1, 1.1], [1.0, 1.0])
    given["log_prob"].requires_grad_()
    loss, metrics = run("clip_cov", given, **BAND, selection=torch.tensor([[True, False]]))
    loss.sum().backward()
    assert loss[0].tolist() == pytest.approx([0.0, -1.1])
    assert given["log_prob"].grad[0].tolist() == pytest.approx([0.0, -1.1])
    assert metrics["actor/pg_clipfrac"][0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "options"), [("dro", {"dro_beta": 0.0}), ("sapo", {"tau_pos": 0.0}), ("sapo", {"tau_neg": -1.0})]
)
def test_options_that_must_be_positive(name, options):
    with pytest.raises(ConfigError, match=r"actor\.loss_options\.\w+ must be positive"):
        run(name, tokens([1.0], [1.0]), **options)
