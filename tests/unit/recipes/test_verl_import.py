"""A verl command line becomes a recipe that does the same: by hand, and against verl's own list of options."""

import json
from pathlib import Path

import pytest

from ppo_lightning.cli import main
from ppo_lightning.config.load import get, load
from ppo_lightning.config.schema import Config, leaves
from ppo_lightning.config.validate import validate
from ppo_lightning.errors import ConfigError
from ppo_lightning.recipes import pages
from ppo_lightning.recipes.verl_import import import_verl, to_recipe
from ppo_lightning.recipes.verl_missing import WITHOUT, why_missing
from ppo_lightning.recipes.verl_options import BEYOND_THE_CONFIG, OPTIONS, defaults

FILES = Path(__file__).parent / "files"
ROOT = Path(__file__).parents[3]
VERL = json.loads((ROOT / "tests" / "parity" / "golden" / "verl_options.json").read_text())
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))


def test_every_option_of_verl_has_a_counterpart_or_a_reason():
    assert len(VERL) > 600
    assert [key for key in VERL if key not in defaults() and why_missing(key) is None] == []
    assert why_missing("trainer.an_option_of_the_future") is None  # the check can fail


def test_the_table_names_options_that_exist_with_verls_defaults():
    assert sorted(defaults().keys() - VERL.keys()) == sorted(BEYOND_THE_CONFIG)
    chosen = {f"{ROLLOUT}.name"}  # verl has no default: `???`
    table = {key: value for key, value in defaults().items() if key in VERL and key not in chosen}
    assert table == {key: VERL[key] for key in table}
    assert {option.ours for option in OPTIONS} <= leaves().keys()
    assert len({pattern for pattern, _ in WITHOUT}) >= len(WITHOUT) - 1


def test_a_grpo_script_by_hand(tmp_path):
    made = import_verl([str(FILES / "verl_grpo.sh")])
    expected = {
        "model.path": "Qwen/Qwen2.5-0.5B-Instruct",  # ${MODEL:-...}
        "model.gradient_checkpointing": True,  # verl's default
        "rollout.response_tokens": 2048,  # $((MAX * 2))
        "data.prompts_per_step": 256,
        "data.long_prompts": "filter",
        "rollout.rollouts_per_prompt": 8,
        "update.sequences_per_minibatch": 512,  # 64 prompts x 8
        "update.sequences_per_microbatch": 40,  # per device in both
        "actor.clip_ratio_low": 0.2,  # verl ignores actor.clip_ratio=0.3
        "reward.scorer": "gsm8k_strict",
        "rollout.dtype": "bfloat16",  # verl's default
        "rollout.enforce_eager": False,  # verl's default
        "trainer.epochs": 15,
        "trainer.devices": 1,
        "logging.wandb": "online",
    }
    assert {key: made.values[key] for key in expected} == expected
    assert made.values["data.train"].endswith("/data/gsm8k/train.parquet")
    assert "$" not in made.values["data.train"]
    assert made.origin["update.sequences_per_minibatch"] == f"verl: {ACTOR}.ppo_mini_batch_size"
    assert made.origin["rollout.dtype"] == f"verl's default of {ROLLOUT}.dtype"
    assert "clip_ratio_low and clip_ratio_high decide" in made.missing[f"{ACTOR}.clip_ratio"]
    assert "Did you mean" in made.missing["trainer.foo"]
    assert "set it by hand" in made.missing["trainer.experiment_name"]
    assert "name" not in made.values  # neither guessed nor verl's default
    file = tmp_path / "made.yaml"
    file.write_text(to_recipe(made, "verl_grpo.sh"))
    config = load(file).config
    validate(config)
    assert {key: get(config, key) for key in made.values} == made.values


def test_a_dapo_script_by_hand():
    made = import_verl([str(FILES / "verl_dapo.sh")])
    expected = {
        "data.max_prompt_tokens": 2048,
        "rollout.response_tokens": 4096,
        "update.tokens_per_microbatch": 24576,  # (2048 + 4096) * 2, x 2 sequence-parallel devices
        "update.sequences_per_minibatch": 512,  # 32 x 16
        "update.lr_warmup_steps": 10,
        "actor.clip_ratio_high": 0.28,
        "algorithm.filter_groups": True,
        "algorithm.filter_groups_max_batches": 10,
        "reward.manager": "dapo",
        "reward.overlong_buffer_tokens": 1024,
        "reward.overlong_penalty": 1.0,
        "rollout.engine": "vllm",
        "trainer.nodes": 2,
        "trainer.devices": 8,
        "trainer.strategy": "fsdp",  # 16 devices
        "logging.wandb": "off",
    }
    shown = {key: made.values[key] if key in made.values else get(Config(), key) for key in expected}
    assert shown == expected
    assert "update.sequences_per_microbatch" not in made.values
    text = " ".join(made.notes)
    assert "rollout.name=sglang" in text
    assert "data.truncation=left" in text


def test_bare_verl_writes_every_default_that_differs():
    made = import_verl([])
    assert made.values["data.prompts_per_step"] == 1024
    assert made.values["trainer.epochs"] == 30
    assert made.values["critic.path"].endswith("/models/deepseek-llm-7b-chat")  # gae trains a critic
    assert made.values["update.sequences_per_minibatch"] == 256
    assert "actor.lr" not in made.values  # 1e-6 in both
    assert any("refuses to start" in note for note in made.notes)


def test_a_hydra_file_and_overrides_on_top(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "defaults: [ppo_trainer, _self_]\nhydra: {run: {dir: out}}\nalgorithm: {adv_estimator: rloo}\n"
        "data: {train_batch_size: 64, max_response_length: 100}\n"
        "actor_rollout_ref: {actor: {ppo_micro_batch_size: 32}, rollout: {n: 4, response_length: 7}}\n"
        "trainer: {n_gpus_per_node: 4, total_epochs: '${data.train_batch_size}'}\n"
    )
    made = import_verl([str(file), "data.train_batch_size=128", "critic.enable=true"])
    assert made.values["data.prompts_per_step"] == 128
    assert made.values["trainer.epochs"] == 128  # the reference follows the override
    assert made.values["update.sequences_per_microbatch"] == 8  # 32 over 4 devices
    assert made.values["algorithm.adv_estimator"] == "rloo"
    assert not any(key.startswith(("defaults", "hydra")) for key in made.missing)
    assert any("critic.enable" in note for note in made.notes)


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        (
            ["algorithm.use_pf_ppo=true", "algorithm.pf_ppo.reweight_method=max_min"],
            "algorithm.pf_ppo_reweight",
            "max_min",
        ),
        (["algorithm.rollout_correction.rollout_is=token"], "rollout_correction.rollout_is", "token"),
        (["algorithm.rollout_correction.rollout_is_threshold=3"], "rollout_correction.rollout_is_threshold", "3"),
        (
            ["algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.loss_type=reinforce"],
            "actor.policy_loss",
            "reinforce",
        ),
        ([f"{ACTOR}.policy_loss.loss_mode=sapo"], "actor.loss_options", {"tau_pos": 1.0, "tau_neg": 1.05}),
        ([f"{ACTOR}.optim.grad_clip=0.5"], "actor.grad_clip", 0.5),
        ([f"{MODEL}.lora_rank=8"], "model.lora_alpha", 16.0),
        (
            [f"{MODEL}.lora_rank=8", f"{MODEL}.target_modules=[q_proj,v_proj]"],
            "model.lora_targets",
            ["q_proj", "v_proj"],
        ),
        (["custom_reward_function.path=a.py"], "reward.path", "a.py"),
        (
            ["trainer.total_training_steps=200", f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1"],
            "update.lr_warmup_steps",
            20,
        ),
    ],
)
def test_rules(given, key, value):
    assert import_verl(given).values[key] == value


def test_without_an_adapter_nothing_is_said_of_it():
    made = import_verl([f"{MODEL}.lora_alpha=64"])
    assert not {"model.lora_alpha", "model.lora_targets"} & made.values.keys()


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        import_verl([str(tmp_path / "none.sh")])
    file = tmp_path / "a.sh"
    file.write_text("python train.py lr=1\n")
    with pytest.raises(ConfigError, match="no command calls"):
        import_verl([str(file)])


def test_nothing_is_run(tmp_path):
    file = tmp_path / "a.sh"
    file.write_text(f"X=$(touch {tmp_path}/ran)\npython -m verl.trainer.main_ppo data.train_batch_size=$X\n")
    made = import_verl([str(file)])
    assert not (tmp_path / "ran").exists()
    assert "data.train_batch_size" in made.missing


@pytest.mark.parametrize("name", pages.PAGES)
def test_pages_are_fresh(name):
    assert (ROOT / name).read_text() == pages.PAGES[name](), "run make docs"


def test_verb(tmp_path, capsys):
    target = tmp_path / "a.yaml"
    assert main(["recipes", "import-verl", str(FILES / "verl_grpo.sh"), "--output", str(target)]) == 0
    assert load(target).config.update.sequences_per_minibatch == 512
    assert main(["recipes", "import-verl", str(FILES / "verl_grpo.sh"), "--output", str(target)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["recipes", "import-verl", "algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=1"]) == 1
    shown = capsys.readouterr().out
    assert 'adv_estimator: "grpo"' in shown
    assert "# to be settled: algorithm.adv_estimator=grpo compares the rollouts of one prompt" in shown  # n is 1
