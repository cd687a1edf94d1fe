import math

import pytest

from ppo_lightning.algorithms.rollout_correction.settings import RULES, Rule, Settings, read_settings
from ppo_lightning.config.schema import RolloutCorrectionConfig
from ppo_lightning.errors import ConfigError


def read(**options):
    return read_settings(RolloutCorrectionConfig(**options))


def test_the_default_does_nothing():
    settings = read()
    assert settings == Settings()
    assert settings.row_local


@pytest.mark.parametrize(
    ("text", "lower", "upper"), [("2.0", None, 2.0), (" 3 ", None, 3.0), ("0.5_5", 0.5, 5.0), ("1_1", 1.0, 1.0)]
)
def test_bounds_of_the_weights(text, lower, upper):
    settings = read(rollout_is="token", rollout_is_threshold=text)
    assert (settings.lower, settings.upper) == (lower, upper)


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "2_1", "0_1", "nan", "inf", "1_2_3"])
def test_bounds_that_are_none(text):
    with pytest.raises(ConfigError, match=r"rollout_correction\.rollout_is_threshold must be .* - got .* - write"):
        read(rollout_is="token", rollout_is_threshold=text)


def test_k1_takes_a_band_of_ratios():
    band = read(rollout_rs="token_k1", rollout_rs_threshold="0.5_4").rules
    assert band == (Rule("token_k1", "token", "k1", math.log(0.5), math.log(4.0)),)
    (one,) = read(rollout_rs="seq_mean_k1", rollout_rs_threshold="4").rules
    assert (one.lower, one.upper) == (pytest.approx(math.log(0.25)), math.log(4.0))


def test_one_threshold_serves_all_rules_or_each_has_its_own():
    shared = read(rollout_rs="token_k2, seq_max_k3,token_k2", rollout_rs_threshold="0.3").rules
    assert [(rule.name, rule.upper) for rule in shared] == [("token_k2", 0.3), ("seq_max_k3", 0.3)]
    own = read(rollout_rs="token_k1,seq_sum_k3", rollout_rs_threshold="0.5_2,0.1").rules
    assert [(rule.scope, rule.kind, rule.upper) for rule in own] == [
        ("token", "k1", math.log(2)),
        ("seq_sum", "k3", 0.1),
    ]


@pytest.mark.parametrize(
    ("rules", "threshold", "message"),
    [
        ("token_k4", "1", "rollout_rs must be off or a comma-separated list of token_k1, .*got 'token_k4'"),
        ("seq_max_k1", "1", "rollout_rs must be off"),
        ("token_k2", None, r"rollout_rs_threshold must hold one value, or one per rule \(1\).*got None.*example 0.1"),
        ("token_k1,token_k2,token_k3", "1,2", r"one per rule \(3\).*example 0.5_2.0,0.1,0.1"),
        ("token_k2", "0.1_0.2", "for token_k2 must be a single upper bound"),
        ("token_k3", "-1", "for token_k3 must be a positive upper bound"),
    ],
)
def test_rules_that_are_wrong(rules, threshold, message):
    with pytest.raises(ConfigError, match=message):
        read(rollout_rs=rules, rollout_rs_threshold=threshold)


def test_level_that_is_wrong():
    with pytest.raises(ConfigError, match=r"rollout_correction\.rollout_is must be off, token or sequence - got 'row'"):
        read(rollout_is="row")


def test_what_needs_more_than_its_own_row():
    assert read(rollout_is="token").row_local
    assert not read(rollout_is="token", rollout_is_batch_normalize=True).row_local
    assert read(rollout_is_batch_normalize=True).row_local
    assert not read(rollout_rs="token_k2", rollout_rs_threshold="1").row_local


def test_all_eleven_rules_of_verl():
    assert len(RULES) == 11
