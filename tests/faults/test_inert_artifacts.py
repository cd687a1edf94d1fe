"""Nothing that a run reads is executed: checkpoints, model folders, tokenizers, templates, recipes.

Every payload would make a file, the canary; every test has the reader that would let it.
"""

import contextlib
import json
import pickle
import shutil
import time
import warnings

import jinja2
import pytest
import torch
import yaml

from ppo_lightning.config.load import load
from ppo_lightning.config.schema import ModelConfig
from ppo_lightning.errors import CheckpointError, ConfigError, DataError
from ppo_lightning.models.load import load_causal_lm, load_tokenizer


class Payload:
    """Makes the canary when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return (open, (str(self.canary), "w"))


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


def test_a_pickle_in_a_checkpoint(fit_tiny, tmp_path, canary):
    options = ["data.val=null", "algorithm.adv_estimator=grpo", "checkpoint.every_steps=1"]
    code, folder, _ = fit_tiny(tmp_path, *options, "trainer.steps=1")
    assert code == 0
    files = sorted(folder.glob("checkpoints/step_000001/**/*.pt"))
    assert files
    for file in files:
        torch.save({"state": Payload(canary)}, file)
    with pytest.raises(CheckpointError):
        fit_tiny(tmp_path, *options, "trainer.steps=2", resume="auto")
    assert not canary.exists()
    torch.load(files[0], weights_only=False)
    assert canary.exists()


def test_weights_that_are_a_pickle(tiny_model, tmp_path, canary):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Payload(canary)}, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="no model could be loaded"):
        load_causal_lm(ModelConfig(path=str(folder)))
    assert not canary.exists()
    with (tmp_path / "p").open("wb") as out:
        pickle.dump(Payload(canary), out)
    pickle.loads((tmp_path / "p").read_bytes())
    assert canary.exists()


@pytest.fixture
def with_code(tiny_model, tmp_path, canary, monkeypatch):
    """A model folder that brings Python code for its own type of model and tokenizer."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    folder = tmp_path / "own"
    shutil.copytree(tiny_model, folder)
    (folder / "evil.py").write_text(
        f"open({str(canary)!r}, 'w')\n"
        "from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
        "class Config(LlamaConfig):\n    model_type = 'evil'\n"
        "class Model(LlamaForCausalLM):\n    config_class = Config\n"
        "class Tokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )
    for file, change in {
        "config.json": {
            "model_type": "evil",
            "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "Tokenizer",
            "auto_map": {"AutoTokenizer": [None, "evil.Tokenizer"]},
        },
    }.items():
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(content | change))
    return folder


def test_code_that_comes_with_a_model(with_code, canary):
    with pytest.raises(ConfigError, match="no model could be loaded"):
        load_causal_lm(ModelConfig(path=str(with_code)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(ConfigError):  # some tokenizers load without the code that comes with them
            load_tokenizer(ModelConfig(path=str(with_code)))
    assert not canary.exists()
    load_causal_lm(ModelConfig(path=str(with_code), trust_remote_code=True))
    assert canary.exists()


def test_a_chat_template_that_reaches_for_the_system(real_model, tmp_path, canary):
    from ppo_lightning.data.chat import render

    source = f"{{{{ cycler.__init__.__globals__.os.system('touch {canary}') }}}}{{{{ messages }}}}"
    (tmp_path / "template.jinja").write_text(source)
    tokenizer = load_tokenizer(ModelConfig(path=real_model, chat_template=str(tmp_path / "template.jinja")))
    with pytest.raises(DataError, match="the chat template refuses"):
        render(tokenizer, [{"role": "user", "content": "a"}])
    assert not canary.exists()
    jinja2.Environment().from_string(source).render(messages=[])
    assert canary.exists()


def test_yaml_tags(tmp_path, canary):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"name: !!python/object/apply:os.system ['touch {canary}']\n")
    with pytest.raises(ConfigError, match="not readable as YAML"):
        load(recipe)
    assert not canary.exists()
    yaml.unsafe_load(recipe.read_text())
    assert canary.exists()


def bomb(levels):
    """Return YAML in which one key has 9 ** levels entries."""
    made = ["a1: &a1 [x, x, x, x, x, x, x, x, x]"]
    made += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(2, levels + 1)]
    return "\n".join([*made, f"name: *a{levels}"])


def test_a_bomb_of_aliases(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(bomb(9))
    start = time.perf_counter()
    with pytest.raises(ConfigError):
        load(recipe)
    assert time.perf_counter() - start < 10  # 9**9 entries would take all memory there is
    naive = [json.dumps(yaml.safe_load(bomb(levels))["name"]).count("x") for levels in (3, 5)]
    assert naive == [9**3, 9**5]  # a reader that writes out what aliases stand for


@pytest.mark.parametrize(
    "text",
    [
        "_target_: os.system\n",
        "actor: {_target_: os.system, _args_: ['touch CANARY']}\n",
        "reward: {options: {}, class_path: os.system}\n",
        "algorithm: {adv_estimator: os.system}\n",
        'actor: {policy_loss: \'__import__("os").system("touch CANARY")\'}\n',
        'name: ${eval:\'open("CANARY","w")\'}\n',
        "seed: \"__import__('os').system('touch CANARY')\"\n",
    ],
)
def test_recipes_name_no_classes_and_no_code(tmp_path, canary, text):
    from ppo_lightning.config.validate import validate

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text.replace("CANARY", str(canary)))
    with pytest.raises(ConfigError):
        validate(load(recipe).config)
    assert not canary.exists()
