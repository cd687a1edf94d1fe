"""Panels show declared metrics only, and pick from a run what it logged."""

from ppo_lightning.metrics.panels import PANELS
from ppo_lightning.metrics.registry import METRICS

KEYS = [(section, key) for section, panels in PANELS.items() for panel in panels for key in panel.keys]


def test_every_key_is_declared():
    assert [(section, key) for section, key in KEYS if key not in METRICS] == []
    assert "actor/pg_los" not in METRICS


def test_no_key_is_shown_twice():
    assert len(KEYS) == len({key for _, key in KEYS})


def test_sections_in_order():
    assert list(PANELS) == ["training", "reward", "lengths", "stability", "engine gap", "performance", "validation"]


def test_families_are_filled_in_from_what_was_logged():
    logged = ["val-core/gsm8k/acc/mean@4", "val-core/math/acc/mean@4", "val-aux/gsm8k/acc/std@4", "critic/score/mean"]
    mean = PANELS["validation"][0]
    assert mean.among(logged) == ["val-core/gsm8k/acc/mean@4", "val-core/math/acc/mean@4"]
    assert PANELS["reward"][0].among(logged) == ["critic/score/mean"]
    assert PANELS["lengths"][0].among(logged) == []


def test_failed_samples_are_in_one_chart():
    assert {"reward/timeout", "reward/exception"} <= set(PANELS["reward"][-1].keys)
