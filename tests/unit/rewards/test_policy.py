"""reward.on_error: stop above a share, drop, or put a score in; faults are counted whatever the policy."""

import pytest

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import ConfigError, RewardError
from ppo_lightning.rewards.policy import settle, substitute
from ppo_lightning.rewards.sample import FAULTS, Scored


def step(good, *faults):
    scored = [Scored(row, 0.0, {"acc": 0.0, "score": 0.0}) for row in range(good)]
    return scored + [Scored(good + index, None, {"pred": "5"}, kind, "why") for index, kind in enumerate(faults)]


def test_stop_allows_up_to_the_share_and_drops_what_failed():
    """2 of 20 are 10 %, not above; 3 of 21 are 14.3 %."""
    verdict = settle(step(18, "timeout", "nan"), RewardConfig())
    assert verdict.keep == [True] * 18 + [False] * 2
    with pytest.raises(RewardError, match=r"3 of 21 samples of this step could not be scored \(2 timeout, 1 nan\)"):
        settle(step(18, "timeout", "nan", "timeout"), RewardConfig())


def test_the_message_shows_the_first_faults_and_names_the_keys():
    scored = [Scored(4, None, {}, "exception", "Traceback\nKeyError: 'x'")]
    with pytest.raises(RewardError) as caught:
        settle(scored, RewardConfig())
    for part in (
        "row 4: exception: Traceback",
        "KeyError: 'x'",
        "reward.on_error",
        "reward.max_error_share",
        "reward-check",
    ):
        assert part in str(caught.value)


def test_share_zero_stops_at_the_first_fault_and_share_one_never():
    with pytest.raises(RewardError):
        settle(step(99, "none"), RewardConfig(max_error_share=0.0))
    assert settle(step(1, "none"), RewardConfig(max_error_share=1.0)).keep == [True, False]


def test_drop_goes_on_whatever_the_share_unless_nothing_is_left():
    assert settle(step(1, "none", "none"), RewardConfig(on_error="drop")).keep == [True, False, False]
    for policy in ("drop", "score:0", "stop"):
        with pytest.raises(RewardError, match="none is left to train on"):
            settle(step(0, "none", "none"), RewardConfig(on_error=policy))


def test_score_puts_a_value_in_and_keeps_the_fault():
    verdict = settle(step(1, "none"), RewardConfig(on_error="score:-1.5"))
    assert [item.score for item in verdict.scored] == [0.0, -1.5]
    assert verdict.keep == [True, True]
    assert verdict.scored[1].fault == "none"


def test_every_kind_is_counted_every_time_with_the_same_keys():
    clean = settle(step(3), RewardConfig()).counts
    assert clean == {f"reward/{kind}": 0 for kind in FAULTS}
    mixed = settle(step(1, "none", "none", "timeout"), RewardConfig(on_error="score:0")).counts
    assert mixed == clean | {"reward/none": 2, "reward/timeout": 1}


def test_zero_scores_are_not_faults():
    """PITFALL 49; negative control: testing the score for truth drops every row."""
    verdict = settle(step(3), RewardConfig())
    assert verdict.keep == [True] * 3
    assert [bool(item.score) for item in verdict.scored] == [False] * 3


def test_an_empty_step_is_fine():
    assert settle([], RewardConfig()).keep == []


@pytest.mark.parametrize("policy", ["ignore", "score", "score:", "score:high", "stop:1", ""])
def test_unknown_policies_are_config_errors(policy):
    with pytest.raises(ConfigError, match=r"reward\.on_error must be stop, drop or score:<number>"):
        substitute(RewardConfig(on_error=policy))


def test_known_policies():
    assert [substitute(RewardConfig(on_error=policy)) for policy in ("stop", "drop", "score:0.5")] == [None, None, 0.5]
