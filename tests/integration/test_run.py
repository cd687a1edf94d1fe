"""A run from the outside: its directory, its metrics, stopping and going on, its last weights."""

import json
import math

import yaml

UNCONDITIONAL = [
    *(
        f"critic/{what}/{how}"
        for what in ("score", "rewards", "advantages", "returns", "values")
        for how in ("mean", "max", "min")
    ),
    "critic/vf_explained_var",
    *(f"response_length/{how}" for how in ("mean", "max", "min", "clip_ratio")),
    *(f"response_length_non_aborted/{how}" for how in ("mean", "max", "min", "clip_ratio")),
    *(f"prompt_length/{how}" for how in ("mean", "max", "min", "clip_ratio")),
    "response/aborted_ratio",
    *(
        f"actor/{what}"
        for what in ("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl", "entropy", "grad_norm", "pg_loss", "lr")
    ),
    *(f"critic/{what}" for what in ("vf_loss", "vf_clipfrac", "vpred_mean", "grad_norm", "lr")),
    *(
        f"timing_s/{what}"
        for what in ("gen", "reward", "old_log_prob", "values", "adv", "update_critic", "update_actor", "step")
    ),
    *(f"timing_per_token_ms/{what}" for what in ("gen", "values", "adv", "update_critic", "update_actor")),
    "perf/total_num_tokens",
    "perf/throughput",
    "perf/time_per_step",
    "training/rollout_probs_diff_max",
    "training/rollout_probs_diff_mean",
    "training/rollout_probs_diff_std",
    "training/rollout_actor_probs_pearson_corr",
    "training/global_step",
]


def test_every_unconditional_key_is_logged_each_step(run, lines):
    _, folder, _ = run()
    steps = [line for line in lines(folder) if line["step"] > 0]
    assert len(steps) == 3
    for line in steps:
        assert [key for key in UNCONDITIONAL if key not in line] == []
        assert [key for key, value in line.items() if value is None or not math.isfinite(value)] == []


def test_switched_off_keys_are_absent(run, lines):
    _, folder, _ = run("algorithm.adv_estimator=grpo", "data.val=null")
    for line in lines(folder):
        assert [key for key in line if "kl_loss" in key or "reward_kl" in key or key.startswith("critic/v")] == []


def test_validation_before_within_and_after(run, lines):
    _, folder, record = run("validation.every_steps=2", "validation.samples_per_prompt=2", "validation.temperature=1.0")
    assert record.validated == [0, 2, 3]
    validated = [line["step"] for line in lines(folder) if "val-core/arithmetic/acc/mean@2" in line]
    assert validated == [0, 2, 3]
    assert lines(folder)[0]["val-aux/arithmetic/num_prompts"] == 6


def test_the_run_directory(run):
    _, folder, _ = run()
    names = {path.name for path in folder.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "rollouts", "checkpoints"} <= names
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["trainer"]["steps"] == 3
    rows = [json.loads(line) for line in (folder / "rollouts" / "step_000001.jsonl").read_text().splitlines()]
    assert len(rows) == 16
    assert {"input", "output", "gts", "score", "step", "uid", "advantage", "response_length", "finish_reason"} <= set(
        rows[0]
    )
    assert len({row["uid"] for row in rows}) == 4


def test_a_second_run_gets_a_directory_of_its_own(run, lines):
    run("trainer.steps=1", "data.val=null")
    _, folder, _ = run("trainer.steps=1", "data.val=null")
    assert len(lines(folder)) == 1
    assert len(lines(folder.with_name("run-2"))) == 1


def test_every_logged_key_is_registered(run, lines):
    from ppo_lightning.metrics.registry import lookup

    _, folder, _ = run("actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true")
    keys = {key for line in lines(folder) for key in line} - {"step"}
    for key in sorted(keys):
        lookup(key)
