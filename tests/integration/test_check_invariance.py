"""`check-invariance`: shipped recipes are invariant; a user's loss that depends on the split is named."""

import json
from pathlib import Path

import pytest

from ppo_lightning.cli import main

RECIPES = ["quickstart", "gsm8k", "gsm8k_grpo", "gsm8k_qwen2.5_0.5b_vllm"]
FILES = Path(__file__).parent / "files"


@pytest.fixture
def check(tiny_model, monkeypatch, capsys):
    """Return a function that runs the verb on the tiny model and returns (exit code, what was printed)."""
    monkeypatch.syspath_prepend(str(FILES))
    monkeypatch.setenv("COLUMNS", "200")
    data = ["data.train=arithmetic:rows=16,digits=1,seed=1", "data.val=null", "model.dtype=float32"]
    data.append("checkpoint.best_metric=null")

    def go(*arguments):
        code = main(["check-invariance", *go.base, *arguments])
        return code, capsys.readouterr().out

    go.base = [f"model.path={tiny_model}", *data]
    return go


@pytest.mark.parametrize("recipe", RECIPES)
def test_shipped_recipes_are_invariant(check, recipe):
    code, said = check("--config", recipe, "trainer.accelerator=cpu")
    assert "scores: drawn at random" in said
    assert "DEPENDS" not in said
    assert "invariant: " in said
    assert ("critic gradient" in said) == (recipe == "gsm8k")
    assert code == 0


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=ppo", "model.lora_rank=2", "rollout_correction.bypass_mode=true", "actor.entropy_coeff=0.01"],
        [
            *("algorithm=grpo", "actor.policy_loss=own_losses:by_token", "actor.use_kl_loss=true"),
            *("algorithm.use_kl_in_reward=true", "correction=token_is", "update.loss_agg_mode=seq-mean-token-mean"),
        ],
    ],
    ids=["ppo", "own loss"],
)
def test_other_recipes_are_invariant(check, overrides):
    code, said = check(*overrides)
    assert "DEPENDS" not in said
    assert code == 0


def test_a_step_without_an_update_is_not_called_invariant(check, capsys):
    code = main(["check-invariance", *check.base, "algorithm=grpo", "actor.policy_loss=own_losses:not_a_number"])
    assert code == 2
    said = capsys.readouterr()
    assert "needs an update to compare, but there was none: stage update: the actor's loss was not finite" in said.err
    assert "invariant" not in said.out


@pytest.mark.parametrize("loss", ["by_micro_batch", "metric_of_micro_batch"])
def test_a_loss_that_depends_on_the_split_is_named(check, loss):
    code, said = check("algorithm=grpo", f"actor.policy_loss=own_losses:{loss}", "update.ppo_epochs=2")
    assert code == 1
    assert "depends on update.sequences_per_microbatch" in said
    assert f"because of actor.policy_loss=own_losses:{loss}" in said
    assert ("actor/own_ratio" in said) == (loss == "metric_of_micro_batch")
    rows = [line for line in said.splitlines() if "micro-batches of 1, padded" in line]
    assert "DEPENDS" in rows[0]


def test_a_recorded_batch(check, tiny_model, tmp_path):
    """Rows of a run's dump, with their own scores."""
    lines = [
        {
            "uid": f"u{row // 2}",
            "input": [{"role": "user", "content": f"What is {row // 2} + 1?"}],
            "output": "one two three four five"[: 4 + 3 * row],
            "score": float(row % 2),
            "finish_reason": "stop",
        }
        for row in range(8)
    ]
    dump = tmp_path / "step_000001.jsonl"
    dump.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    code, said = check("algorithm=grpo", "rollout.rollouts_per_prompt=2", "--batch", str(dump))
    assert "rows: 8 of 4 prompts" in said
    assert "scores: as recorded" in said
    assert code == 0


def test_a_file_that_is_no_batch(check, tmp_path, capsys):
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    assert check("algorithm=grpo", "--batch", str(bad))[0] == 2
