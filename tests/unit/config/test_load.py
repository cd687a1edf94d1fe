import dataclasses

import pytest

from ppo_lightning.config.load import apply, get, load, to_yaml
from ppo_lightning.config.schema import Config, leaves
from ppo_lightning.config.validate import optimizer_steps, sequences_per_step, validate
from ppo_lightning.errors import ConfigError


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "defaults: [{algorithm: grpo}]\nname: mine\nactor: {lr: 1e-5}\nrollout: {rollouts_per_prompt: 4}\n"
        "offline: {data: {train: 'arithmetic:rows=8'}}\nexpect: {metric: x}\n"
    )
    return file


def test_order_is_default_preset_recipe_command_line(recipe):
    loaded = load(recipe, ["actor.lr=2e-6"])
    assert loaded.config.algorithm.adv_estimator == "grpo"
    assert loaded.config.rollout.rollouts_per_prompt == 4  # the preset says 8, the recipe 4
    assert loaded.config.actor.lr == 2e-6
    assert loaded.config.critic.lr == 1e-5
    assert loaded.origin["algorithm.adv_estimator"] == "preset algorithm=grpo"
    assert loaded.origin["rollout.rollouts_per_prompt"] == str(recipe)
    assert loaded.origin["actor.lr"] == "command line"
    assert loaded.origin["critic.lr"] == "default"


def test_a_preset_is_replaced_by_its_group(recipe):
    loaded = load(recipe, ["algorithm=ppo"])
    assert loaded.config.algorithm.adv_estimator == "gae"
    assert loaded.presets == {"algorithm": "ppo"}


def test_recipe_sections_beside_the_options(recipe):
    loaded = load(recipe)
    assert loaded.offline == {"data.train": "arithmetic:rows=8"}
    assert loaded.expect == {"metric": "x"}
    assert get(apply(loaded, loaded.offline, "offline").config, "data.train") == "arithmetic:rows=8"


def test_values_that_hold_signs_and_mappings():
    loaded = load(None, ["data.train=arithmetic:digits=1,rows=3", "actor.loss_options.tau_pos=2", "data.val=null"])
    assert loaded.config.data.train == "arithmetic:digits=1,rows=3"
    assert loaded.config.actor.loss_options == {"tau_pos": 2}
    assert loaded.config.data.val is None


def test_every_problem_is_named_with_its_place(recipe):
    recipe.write_text("actor: {lrr: 1}\ncritic: {lr: fast}\nkl_ctrl: fixed\n")
    with pytest.raises(ConfigError) as caught:
        load(recipe, ["rollout=vlm"])
    text = str(caught.value)
    assert f"{recipe}: `actor.lrr` is not an option. Did you mean `actor.lr`?" in text
    assert f"{recipe}: `critic.lr` must be float" in text
    assert "Did you mean `algorithm.kl_ctrl`?" in text
    assert "rollout=vlm: no such preset" in text


def test_yaml_is_data_only(recipe):
    recipe.write_text("name: !!python/object/apply:os.system ['touch /tmp/never']\n")
    with pytest.raises(ConfigError, match="not readable as YAML"):
        load(recipe)


def test_a_recipe_cannot_copy_a_secret(recipe):
    recipe.write_text("name: ${oc.env:HF_TOKEN}\n")
    with pytest.raises(ConfigError, match="would copy a secret"):
        load(recipe)


def test_the_resolved_configuration_loads_again(recipe, tmp_path):
    config = load(recipe).config
    again = tmp_path / "config.yaml"
    again.write_text(to_yaml(config))
    assert load(again).config == config


def test_defaults_are_valid_and_frozen():
    validate(Config())
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().name = "other"


def test_batch_arithmetic():
    config = load(
        None, ["data.prompts_per_step=8", "rollout.rollouts_per_prompt=4", "update.sequences_per_minibatch=16"]
    ).config
    assert sequences_per_step(config) == 32
    assert optimizer_steps(config) == 2
    assert optimizer_steps(load(None, ["update.ppo_epochs=3"]).config) == 3


def test_every_option_is_reachable():
    config = Config()
    for key in leaves():
        get(config, key)
