"""Parts of a reward: which functions, which weights, and one score per sample."""

import pytest

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import ConfigError, RewardError
from ppo_lightning.rewards.combine import Part, combine, parts_of
from ppo_lightning.rewards.pool import RewardPool
from ppo_lightning.rewards.sample import Sample, Target
from ppo_lightning.rewards.scorers import SCORER_OF_SOURCE, SCORERS, scorer_of_source

TARGET = Target("m", "f")
PARTS = [Part("task", TARGET), Part("form", TARGET, 0.5), Part("judge", TARGET, 2.0)]


def good(score, /, **extra):
    return {"score": score, "extra": extra, "fault": None, "detail": None, "seconds": 0.5, "batched": False}


def bad(kind, batched=False):
    return {"score": None, "extra": {}, "fault": kind, "detail": "why", "seconds": 0.5, "batched": batched}


def test_the_score_is_the_weighted_sum_and_each_part_a_column():
    """1 * 1.0 + 0.5 * 0.4 + 2 * 0.1 = 1.4."""
    scored = combine(7, PARTS, [good(1.0, acc=1.0, score=1.0, pred="5"), good(0.4, acc=0.4), good(0.1, note="n")])
    assert scored.score == pytest.approx(1.4)
    assert scored.extra == {
        "acc": 1.0,
        "pred": "5",
        "score": pytest.approx(1.4),
        "task": 1.0,
        "form": 0.4,
        "judge": 0.1,
        "judge_note": "n",
    }
    assert (scored.row, scored.seconds, scored.fault) == (7, 1.5, None)


def test_the_logged_score_is_the_trained_score():
    """PITFALL 53: weights ignored in what is logged. The first part alone scores 1.0; 1.4 is trained and logged."""
    scored = combine(0, PARTS, [good(1.0, score=1.0), good(0.4), good(0.1)])
    assert scored.extra["score"] == scored.score != 1.0


def test_a_failed_part_fails_the_sample_but_the_other_parts_keep_their_columns():
    scored = combine(0, PARTS, [good(1.0, acc=1.0, score=1.0), bad("timeout"), good(0.0)])
    assert (scored.score, scored.fault, scored.detail) == (None, "timeout", "form: why")
    assert scored.extra == {"acc": 1.0, "task": 1.0, "judge": 0.0}


def test_none_of_a_batched_part_means_not_applicable_while_another_part_scores():
    scored = combine(0, PARTS, [good(1.0), good(0.0), bad("none", batched=True)])
    assert (scored.score, scored.fault) == (1.0, None)
    assert "judge" not in scored.extra
    assert combine(0, PARTS, [good(1.0), good(0.0), bad("none")]).fault == "none"
    assert combine(0, PARTS[:1], [bad("none", batched=True)]).fault == "none"


def test_parts_come_from_the_configuration():
    config = RewardConfig(
        scorer="gsm8k",
        parts=[
            {"scorer": "gsm8k_format", "weight": 0.2},
            {"scorer": "length", "weight": 1, "options": {"free_characters": 10, "full_characters": 20}},
            {"path": "mine.py", "name": "judge"},
            {"scorer": "gsm8k"},
        ],
    )
    parts = parts_of(config)
    assert [(part.name, part.weight) for part in parts] == [
        ("gsm8k", 1.0),
        ("gsm8k_format", 0.2),
        ("length", 1.0),
        ("judge", 1.0),
        ("gsm8k_2", 1.0),
    ]
    assert parts[0].target == Target("ppo_lightning.rewards.scorers.gsm8k", "gsm8k")
    assert parts[2].target.options == {"free_characters": 10, "full_characters": 20}
    assert parts[3].target.is_file


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            {"scorer": "gsm8k", "wieght": 1},
            r"reward.parts\[0\] has wieght: a part has scorer, path, name, weight, options",
        ),
        ({"weight": 1}, r"reward.parts\[0\] needs either"),
        ({"scorer": "gsm8k", "path": "a.py"}, "needs either"),
        ({"scorer": "gsm9k"}, "got 'gsm9k'"),
        ({"scorer": "gsm8k", "weight": "much"}, r"reward.parts\[0\].weight must be a number - got 'much'"),
    ],
)
def test_a_wrong_part_is_an_error_that_names_the_key(part, message):
    with pytest.raises(ConfigError, match=message):
        parts_of(RewardConfig(parts=[part]))


def test_auto_picks_the_scorer_by_data_source():
    part = parts_of(RewardConfig())[0]
    assert part.target_of(Sample(0, "openai/gsm8k", "", "5")).name == "gsm8k"
    assert part.target_of(Sample(0, "arithmetic", "", "5")).name == "numeric"
    assert part.target_of(Sample(0, "reasoning_gym/chain_sum", "", "5")).name == "reasoning_gym"
    with pytest.raises(RewardError, match=r"no built-in scorer belongs to data_source 'mine': set reward\.scorer"):
        part.target_of(Sample(0, "mine", "", "5"))
    assert set(SCORER_OF_SOURCE.values()) <= set(SCORERS)
    assert scorer_of_source("gsm8k") == "gsm8k"


def test_several_rewards_score_together_in_the_pool():
    config = RewardConfig(scorer="gsm8k", workers=2, parts=[{"scorer": "gsm8k_format", "weight": 0.5}])
    samples = [Sample(0, "gsm8k", "#### 5", "5"), Sample(1, "gsm8k", "so 5", "5"), Sample(2, "gsm8k", "#### 6", "5")]
    with RewardPool(config) as pool:
        scored = pool.score(samples)
    assert [item.score for item in scored] == [1.5, 1.0, 0.5]
    assert [item.extra["gsm8k"] for item in scored] == [1.0, 1.0, 0.0]
    assert [item.extra["gsm8k_format"] for item in scored] == [1.0, 0.0, 1.0]
