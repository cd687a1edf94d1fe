"""A run that trains an adapter: its reference, its checkpoint, going on from it, and what leaves it."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ppo_lightning.cli import main
from ppo_lightning.models.lora import adapter_weights

STEPS = 3
OPTIONS = [
    "model.lora_rank=4",
    "algorithm.adv_estimator=grpo",
    "reward.path=tests/integration/files/rewards.py",
    "actor.use_kl_loss=true",
    "update.sequences_per_minibatch=null",
    "actor.lr=1e-2",
    "data.val=null",
    "checkpoint.every_steps=1",
    "checkpoint.keep=3",
    f"trainer.steps={STEPS}",
]
VOLATILE = ("timing", "perf/throughput", "perf/time_per_step")


def steady(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith(VOLATILE)} for line in lines]


def test_a_run_with_an_adapter(run, tiny_model, tmp_path, capsys):
    code, folder, record = run(*OPTIONS)
    assert code == 0
    module, lines = record.modules[-1], steady(folder)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    own = dict(base.named_parameters())

    # The reference is the base: no second copy, and the KL to it grows from 0.
    assert module.reference is None
    assert lines[0]["actor/kl_loss"] == pytest.approx(0.0, abs=1e-9)
    assert lines[-1]["actor/kl_loss"] > 1e-6
    assert lines[-1]["training/rollout_probs_diff_max"] < 1e-4  # the engine samples from the adapted policy

    # Frozen weights are what they were; the optimizer holds the adapter only.
    for name, parameter in module.actor.named_parameters():
        if ".lora_" not in name:
            assert torch.equal(parameter, own[name.replace(".base_layer", "")]), name
    held = sum(p.numel() for group in module.optimizers().param_groups for p in group["params"])
    assert held == sum(p.numel() for p in adapter_weights(module.actor).values())

    # actor/ is a whole model that computes what the policy computes.
    checkpoint = folder / "checkpoints" / f"step_{STEPS:06d}"
    ids = torch.arange(5, 25).unsqueeze(0)
    with torch.no_grad():
        trained = module.actor.eval()(ids).logits
        saved = AutoModelForCausalLM.from_pretrained(checkpoint / "actor")(ids).logits
        assert torch.allclose(saved, trained, atol=1e-3, rtol=1e-5)
        assert not torch.allclose(base(ids).logits, trained, atol=1e-2)  # or nothing would have been trained

    # export, whole and adapter alone.
    assert main(["export", str(folder), "--to", str(tmp_path / "whole")]) == 0
    assert f"step_{STEPS:06d}" in capsys.readouterr().out
    assert AutoTokenizer.from_pretrained(tmp_path / "whole").chat_template
    with torch.no_grad():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "whole")(ids).logits, saved)
    assert main(["export", str(checkpoint), "--to", str(tmp_path / "adapter"), "--adapter"]) == 0
    exported = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert all(torch.equal(exported[name], tensor) for name, tensor in adapter_weights(module.actor).items())
    assert main(["export", str(folder), "--to", str(tmp_path / "whole")]) == 2
    assert "must be a folder that does not exist yet" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--to", str(tmp_path / "other")]) == 2

    # Stopped after step 1 and gone on: the same numbers and the same adapter.
    cut = tmp_path / "cut"
    shutil.copytree(folder, cut)
    for step in range(2, STEPS + 1):
        shutil.rmtree(cut / "checkpoints" / f"step_{step:06d}")
    run(*OPTIONS, name="cut", resume="auto")
    assert steady(cut) == lines
    again = load_file(cut / "checkpoints" / f"step_{STEPS:06d}" / "adapter" / "adapter_model.safetensors")
    assert all(torch.equal(again[name], tensor) for name, tensor in exported.items())


def test_export_of_a_run_without_an_adapter(run, tmp_path, capsys):
    _, folder, record = run("data.val=null", "trainer.steps=1", "algorithm.adv_estimator=grpo")
    assert main(["export", str(folder), "--to", str(tmp_path / "out"), "--adapter"]) == 2
    assert "holds no adapter" in capsys.readouterr().err
    assert main(["export", str(folder), "--to", str(tmp_path / "out")]) == 0
    ids = torch.arange(5, 25).unsqueeze(0)
    with torch.no_grad():
        exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids).logits
        assert torch.equal(exported, record.modules[-1].actor.eval()(ids).logits)
