"""One name explained: whatever goes by it, and the nearest name where nothing does."""

import pytest

from ppo_lightning.cli import main
from ppo_lightning.config.load import load
from ppo_lightning.errors import ConfigError
from ppo_lightning.explain.key import explain_key

QUICKSTART = load("recipes/quickstart.yaml")


def test_a_field():
    text = explain_key("old_log_probs", QUICKSTART)
    assert "(B, R) float32" in text
    assert "written by   update" in text
    gone = explain_key("ref_log_prob", QUICKSTART)
    assert "written by   nobody: algorithm.use_kl_in_reward and actor.use_kl_loss are off" in gone


def test_stage_and_field_of_one_name():
    text = explain_key("values", QUICKSTART)
    assert "values: stage 6 of 9" in text
    assert "values: field of the batch" in text


def test_an_option_by_its_full_and_its_last_name():
    text = explain_key("lr", QUICKSTART)
    assert "actor.lr: option" in text
    assert "critic.lr: option" in text
    full = explain_key("actor.lr", QUICKSTART)
    assert "default      1e-06" in full
    assert "here         1e-05  (from: recipes/quickstart.yaml)" in full
    assert "critic.lr" not in full
    assert "one of       transformers, vllm" in explain_key("rollout.engine", QUICKSTART)


def test_a_metric_and_one_of_a_family():
    assert "logged       no: actor.use_kl_loss=false" in explain_key("actor/kl_loss", QUICKSTART)
    assert "denominator" in explain_key("timing_s/gen", QUICKSTART)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("old_logprobs", "old_log_probs"),
        ("advantge", "advantage"),
        ("actor.clip_ratio_hi", "actor.clip_ratio_high"),
        ("critic/scores/mean", "critic/score/mean"),
    ],
)
def test_unknown_names_get_the_nearest(wrong, right):
    with pytest.raises(ConfigError, match=f"Did you mean `{right}`"):
        explain_key(wrong, QUICKSTART)


def test_verb(tmp_path, capsys):
    assert main(["explain", "--config", "quickstart", "--html", str(tmp_path / "a.html")]) == 0
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["explain", "seed=3", "--config", "quickstart"]) == 0
    shown = capsys.readouterr().out
    assert "does not run: algorithm.adv_estimator=grpo needs no critic" in shown
    assert "\x1b[" not in shown  # no colours in a pipe
    assert max(map(len, shown.splitlines())) <= 100
    assert main(["explain", "--svg", str(tmp_path / "no" / "a.svg")]) == 2
    assert "cannot be written" in capsys.readouterr().err
