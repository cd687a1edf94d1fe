"""Without a network: the recipe's own entries, said plainly; without such entries, an error with the ways out."""

import re

import pytest

from ppo_lightning.config.load import load
from ppo_lightning.errors import ConfigError
from ppo_lightning.offline import needs_hub, resolve_offline

CUT = [
    "data.prompts_per_step=2",
    "rollout.rollouts_per_prompt=2",
    "rollout.response_tokens=8",
    "update.sequences_per_minibatch=null",
    "trainer.steps=1",
    "data.max_val_rows=2",
    "reward.workers=1",
    "reward.max_error_share=1.0",
]


@pytest.fixture
def no_hub(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def test_what_needs_the_hub(tmp_path):
    assert needs_hub("openai/gsm8k:main@train")
    assert needs_hub("Qwen/Qwen2.5-0.5B-Instruct")
    for local in (
        None,
        "smollm2-135m-instruct",
        "arithmetic:rows=3",
        "reasoning_gym/gsm_symbolic",
        "a/b.jsonl",
        str(tmp_path),
    ):
        assert not needs_hub(local)


@pytest.mark.usefixtures("no_hub")
def test_offline_entries_apply_and_are_said():
    said = []
    loaded = resolve_offline(load("recipes/gsm8k.yaml"), said.append)
    assert loaded.config.data.train.startswith("reasoning_gym/gsm_symbolic")
    assert loaded.origin["data.train"] == "offline"
    assert any("OFFLINE" in line for line in said)
    assert any("openai/gsm8k:main@train" in line and "reasoning_gym" in line for line in said)


@pytest.mark.usefixtures("no_hub")
def test_the_command_line_stays_as_given(tmp_path):
    for name in ("train", "val"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    files = [f"data.train={tmp_path}/train.jsonl", f"data.val={tmp_path}/val.jsonl"]
    said = []
    loaded = resolve_offline(load("recipes/gsm8k.yaml", files), said.append)
    assert loaded.config.data.train == f"{tmp_path}/train.jsonl"
    assert said == []


@pytest.mark.usefixtures("no_hub")
def test_without_entries_it_is_an_error_with_three_ways_out():
    with pytest.raises(ConfigError, match=re.compile("model.path=Qwen.*Three ways out.*1\\..*2\\..*3\\.", re.DOTALL)):
        resolve_offline(load("recipes/gsm8k_qwen2.5_0.5b_vllm.yaml"), print)


@pytest.mark.usefixtures("no_hub")
def test_gsm8k_recipe_runs_offline(cli, tiny_model, tmp_path, lines):
    done = cli(
        "fit",
        "--config",
        "recipes/gsm8k.yaml",
        f"model.path={tiny_model}",
        f"output_dir={tmp_path}",
        *CUT,
    )
    assert done.returncode == 0, done.stderr
    assert "OFFLINE" in done.stdout
    keys = lines(tmp_path / "gsm8k")[0]
    assert "val-core/reasoning_gym/gsm_symbolic/acc/mean@1" in keys
    assert not [key for key in keys if "openai" in key]
