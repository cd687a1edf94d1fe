"""The `expect:` block: its grammar, its arithmetic, and the quickstart's own against a recorded run of it."""

from pathlib import Path

import pytest

from ppo_lightning.cli import main
from ppo_lightning.config.load import load
from ppo_lightning.errors import ConfigError
from ppo_lightning.recipes.expect import Expectation, check_expectations, evaluate, read_expectations
from ppo_lightning.run_dir import read_metrics

RUN = Path(__file__).parent / "files" / "quickstart_run"  # of `make fit`, 2 CPU cores
KEY = "val-core/arithmetic/acc/mean@2"
ROWS = [{"step": 0, "a": 0.2}, {"step": 1}, {"step": 2, "a": 0.7}, {"step": 3, "a": 0.5, "b": None}]


@pytest.mark.parametrize(
    ("bound", "value", "at", "ok"),
    [
        ("at_least", 0.5, "last", True),
        ("at_least", 0.51, "last", False),
        ("at_least", 0.7, "max", True),
        ("at_most", 0.2, "min", True),
        ("at_most", 0.4, "last", False),
        ("at_least_times_start", 2.5, "last", True),  # 0.5 >= 2.5 * 0.2
        ("at_least_times_start", 2.6, "last", False),  # 0.5 < 0.52
        ("at_most_times_start", 3.4, "max", False),  # 0.7 > 0.68
    ],
)
def test_bounds_by_hand(bound, value, at, ok):
    outcome = evaluate(Expectation("a", bound, value, at), ROWS)
    assert outcome.ok is ok
    assert outcome.start == 0.2
    assert outcome.measured == {"last": 0.5, "max": 0.7, "min": 0.2}[at]


def test_a_metric_that_was_not_logged_fails():
    assert evaluate(Expectation("b", "at_most", 1.0), ROWS).ok is False
    assert evaluate(Expectation("c", "at_most", 1.0), ROWS).measured is None


def test_a_multiple_of_nothing_fails():
    rows = [{"a": 0.0}, {"a": 0.3}]
    outcome = evaluate(Expectation("a", "at_least_times_start", 3.0), rows)
    assert outcome.ok is False
    assert "says nothing" in outcome.detail
    assert evaluate(Expectation("a", "at_least_times_start", 1.0), [{"a": 0.3}]).ok is False  # one value is no climb


def test_the_quickstart_reached_what_it_expects():
    found = read_expectations(load("recipes/quickstart.yaml").expect)
    assert [str(one) for one in found] == [f"{KEY} last at_least_times_start 3"]
    outcome = evaluate(found[0], read_metrics(RUN))
    assert (outcome.ok, outcome.start, outcome.measured) == (True, 13 / 96, 0.875)  # 84 of 96


def test_a_run_that_does_not_learn_fails_the_quickstart():
    rows = read_metrics(RUN)
    flat = [{**row, KEY: rows[0][KEY]} if KEY in row else row for row in rows]
    found = read_expectations(load("recipes/quickstart.yaml").expect)
    assert evaluate(found[0], flat).ok is False


def test_several_blocks_and_bounds():
    block = [{"metric": "a", "at_least": 0.1, "at_most": 1}, {"metric": "b", "at_least": 2, "at": "max"}]
    assert [str(one) for one in read_expectations(block)] == [
        "a last at_least 0.1",
        "a last at_most 1",
        "b max at_least 2",
    ]
    assert read_expectations({}) == []


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"metric": KEY}, "needs a bound"),
        ({"at_least": 1}, "must name a `metric`"),
        ({"metric": KEY, "atleast": 1}, "Did you mean `at_least`"),
        ({"metric": KEY, "at_least": "high"}, "at_least must be a number - got 'high'"),
        ({"metric": KEY, "at_least": 1, "at": "end"}, "at='end' must be one of last, max, min"),
    ],
)
def test_mistakes_are_named(block, message):
    with pytest.raises(ConfigError, match=message):
        read_expectations(block)


def test_keys_must_be_logged_by_the_recipe():
    config = load("recipes/quickstart.yaml").config
    wrong = check_expectations([Expectation("critic/scores/mean", "at_least", 1)], config)
    assert "did you mean critic/score/mean" in wrong[0]
    off = check_expectations([Expectation("actor/kl_loss", "at_most", 1)], config)
    assert off == ["expect: actor/kl_loss is not logged by this recipe: actor.use_kl_loss=false: no KL in the loss"]


def test_validate_verb(tmp_path, capsys):
    assert main(["recipes", "validate", "quickstart", "--run", str(RUN)]) == 0
    assert "ok      val-core/arithmetic/acc/mean@2: 0.875, expected >= 3 x 0.1354" in capsys.readouterr().out
    recipe = tmp_path / "high.yaml"
    recipe.write_text(f"expect: {{metric: {KEY}, at_least: 0.9}}\ndata: {{val: x.jsonl}}\n")
    assert main(["recipes", "validate", str(recipe), "--run", str(RUN)]) == 1
    assert "FAILED" in capsys.readouterr().out
    recipe.write_text("expect: {metric: nothing/at/all, at_least: 1}\nrollout: {top_p: 0.9}\n")
    assert main(["recipes", "validate", str(recipe)]) == 2
    shown = capsys.readouterr().err
    assert "nothing/at/all" in shown
    assert "rollout.top_p=0.9" in shown  # both problems at once
    assert main(["recipes", "validate", "quickstart", "--run", str(tmp_path)]) == 2
