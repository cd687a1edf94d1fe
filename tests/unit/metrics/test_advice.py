"""Every warning fires where it should, once per episode, and none fires on a healthy run."""

from pathlib import Path

import pytest

from ppo_lightning.config.schema import Config
from ppo_lightning.metrics.advice import CALM, FEWEST, FIRST, RULES, Rule, Watch, Watches, rules_for, table
from ppo_lightning.metrics.registry import METRICS

DOCS = Path(__file__).parents[3] / "docs" / "warnings.md"
HEALTHY = {
    "training/equal_score_groups": 0.4,
    "response_length/clip_ratio": 0.1,
    "response/aborted_ratio": 0.0,
    "actor/entropy": 1.2,
    "training/rollout_probs_diff_alarm": 0.0,
    "actor/ppo_kl": 0.001,
    "actor/reward_kl_penalty": 0.02,
    "actor/kl_loss": 0.02,
    "critic/vf_explained_var": 0.3,
    "training/skipped_steps": 0.0,
    "training/records_lost": 0.0,
    "perf/throughput": 1000.0,
    **{key: 0.0 for key in METRICS if key.startswith("reward/") and METRICS[key].unit == "samples"},
}
BAD = {
    "equal groups": 0.81,
    "responses cut off": 0.51,
    "empty responses": 0.11,
    "entropy collapse": 0.119,
    "engine gap": 1.0,
    "update too large": 0.11,
    "KL runs away": 0.31,
    "critic explains nothing": -0.01,
    "reward faults": 1.0,
    "steps left out": 1.0,
    "log records lost": 1.0,
    "throughput drop": 499.0,
}
WARM = FIRST + FEWEST


def healthy(step):
    """Metrics of a run that learns: the entropy falls to a third, lengths and speed waver."""
    wave = 1 + 0.2 * (-1) ** step
    falling = 1.2 * (1 - min(step, 60) / 90)
    return HEALTHY | {"actor/entropy": falling, "perf/throughput": 1000 * wave, "actor/ppo_kl": 0.001 * wave}


def test_a_healthy_run_is_left_alone():
    watches = Watches()
    assert [warned for step in range(1, 101) for warned in watches.observe(step, healthy(step))] == []
    assert watches.active == 0


def test_every_rule_has_a_case_and_looks_at_declared_metrics():
    assert set(BAD) == {rule.name for rule in RULES}
    assert [key for rule in RULES for key in rule.keys if key not in METRICS] == []
    assert set(HEALTHY) == {key for rule in RULES for key in rule.keys}


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
@pytest.mark.parametrize("which", [0, -1])
def test_every_rule_fires_once_and_ends_once(rule, which):
    watches, key = Watches(), rule.keys[which]
    for step in range(1, WARM + 1):
        assert watches.observe(step, HEALTHY) == []
    found = []
    for step in range(WARM + 1, WARM + rule.steps + 4):
        found += watches.observe(step, HEALTHY | {key: BAD[rule.name]})
    (warned,) = found
    assert (warned.rule, warned.key, warned.begins, warned.step) == (rule, key, True, WARM + rule.steps)
    assert watches.active == 1
    assert rule.advice in warned.text()
    assert "\n" not in warned.text()
    calm = [warned for step in range(100, 130) for warned in watches.observe(step, HEALTHY)]
    assert [(warned.begins, warned.step) for warned in calm] == [(False, 100 + max(CALM, rule.steps) - 1)]
    assert watches.active == 0


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_at_the_threshold_nothing_is_said(rule):
    share = {"value": 1.0, "start": 1.2, "recent": 1000.0}[rule.basis]
    watches = Watches((rule,))
    for step in range(1, 40):
        metrics = HEALTHY if step <= WARM else HEALTHY | {rule.keys[0]: rule.threshold * share}
        assert watches.observe(step, metrics) == []
        if rule.basis == "recent" and step > WARM:
            break


def test_a_value_that_wavers_around_the_threshold_is_one_episode():
    """Without hysteresis every second step would begin anew."""
    rule = Rule("x", ("actor/ppo_kl",), "above", 1.0, "value", 1, "do")
    watch = Watch(rule)
    said = [warned for step in range(20) if (warned := watch.observe(step, {"actor/ppo_kl": 1.1 if step % 2 else 0.9}))]
    assert [warned.begins for warned in said] == [True]
    naive = [step for step in range(1, 20) if step % 2]
    assert len(naive) == 10


def test_one_bad_step_is_none_where_several_are_asked_for():
    watches = Watches()
    rows = [HEALTHY | ({"response_length/clip_ratio": 1.0} if step % 3 else {}) for step in range(30)]
    assert [warned for step, row in enumerate(rows) for warned in watches.observe(step, row)] == []


def test_absent_and_not_finite_values_count_neither_way():
    rule = next(rule for rule in RULES if rule.name == "responses cut off")
    watch, key = Watch(rule), rule.keys[0]
    values = [1.0, None, 1.0, "absent", 1.0]
    rows = [{} if value == "absent" else {key: value} for value in values]
    assert [bool(watch.observe(step, row)) for step, row in enumerate(rows)] == [False, False, False, False, True]


def test_going_through_old_steps_again_gives_the_same_state():
    rows = [HEALTHY | ({"response_length/clip_ratio": 1.0} if 20 < step < 30 else {}) for step in range(28)]
    straight, resumed = Watches(), Watches()
    for step, row in enumerate(rows):
        straight.observe(step, row)
    for step, row in enumerate(rows[:25]):
        resumed.observe(step, row)
    assert resumed.active == 1
    assert [resumed.observe(step, row) for step, row in enumerate(rows[25:])] == [[], [], []]
    assert resumed.active == straight.active


def test_losses_that_add_up_tokens_have_no_bound():
    import dataclasses

    config = dataclasses.replace(Config(), update=dataclasses.replace(Config().update, loss_agg_mode="token-sum"))
    keys = {rule.name: rule.keys for rule in rules_for(config)}
    assert keys["KL runs away"] == ("actor/reward_kl_penalty",)
    assert keys["entropy collapse"] == ("actor/entropy",)
    assert rules_for(Config()) == RULES


def test_the_documentation_holds_every_rule():
    assert table() in DOCS.read_text(encoding="utf-8"), "run make docs"
