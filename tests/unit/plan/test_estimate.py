"""The estimate by hand on a small model, against what autograd really keeps, and as a table of any width."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ppo_lightning.cli import main
from ppo_lightning.config.load import load
from ppo_lightning.plan.activations import measure
from ppo_lightning.plan.estimate import micro_batch, plan
from ppo_lightning.plan.show import changes

MODEL = LlamaConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
# Embeddings 97 x 32, which are the head too; a layer: q, o 32 x 32, k, v 32 x 16, gate, up, down 32 x 64, two norms.
WEIGHTS = 97 * 32 + 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32) + 32
LIMITS = [
    "data.max_prompt_tokens=10",
    "rollout.response_tokens=6",
    "data.prompts_per_step=8",
    "update.sequences_per_microbatch=4",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a config.json and nothing else."""
    path = tmp_path_factory.mktemp("model")
    MODEL.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def estimate(folder):
    def go(*overrides, gpu=False):
        config = load(None, [f"model.path={folder}", *LIMITS, "trainer.accelerator=gpu", *overrides]).config
        return {part.name: part for part in plan(config, 1000.0, 1e9, gpu).parts}

    return go


def test_parts_by_hand(estimate):
    parts = estimate()
    critic = {name: part.bytes for name, part in parts.items() if name.startswith("critic")}
    # One optimizer step each: the critic's is undone when the actor's gradient is bad. Weights and two moments.
    assert critic.pop("critic: copy to undo a step") == 12 * WEIGHTS
    assert critic == {
        name.replace("actor", "critic"): part.bytes for name, part in parts.items() if name.startswith("actor")
    }
    assert parts["actor: weights"].bytes == 4 * WEIGHTS
    assert parts["actor: gradients"].bytes == 4 * WEIGHTS
    assert parts["actor: optimizer"].bytes == 8 * WEIGHTS
    assert parts["actor: gradients"].phases == {"update actor"}
    # 8 rows x 16 tokens x 2 (keys, values) x 3 layers x 2 heads x 8 x 4 bytes.
    assert parts["engine: keys and values"].bytes == 8 * 16 * 2 * 3 * 2 * 8 * 4
    # 4 rows x 6 response tokens x 97 logits x 4 bytes, three times.
    assert parts["logits: one tile"].bytes == 3 * 24 * 97 * 4
    assert parts["logits: kept for the gradient"].bytes == 24 * 97 * 4
    assert parts["logits: kept for the gradient"].phases == {"update actor"}
    assert "reference: weights" not in parts
    assert "actor: float32 copy" not in parts


@pytest.mark.parametrize(("bound", "kept"), [(24 * 97, True), (24 * 97 - 1, False)])
def test_logits_of_many_tokens_are_not_kept(estimate, monkeypatch, bound, kept):
    monkeypatch.setattr("ppo_lightning.plan.estimate.KEPT_ELEMENTS", bound)
    assert ("logits: kept for the gradient" in estimate()) == kept


@pytest.mark.parametrize(
    ("overrides", "tokens", "responses"),
    [
        ([], 4 * 16, 24),
        (["rollout.rollouts_per_prompt=4"], 10 + 4 * 6, 24),  # one prompt, four responses
        (["rollout.rollouts_per_prompt=4", "update.share_prompts=false"], 4 * 16, 24),
        (["update.tokens_per_microbatch=100"], 100, 36),  # six rows of 16 fit
        (["update.sequences_per_minibatch=2"], 2 * 16, 12),
    ],
)
def test_the_largest_micro_batch(folder, overrides, tokens, responses):
    load_ = micro_batch(load(None, [f"model.path={folder}", *LIMITS, *overrides]).config)
    assert (load_.tokens, load_.responses) == (tokens, responses)


def test_what_each_option_saves(estimate):
    kl = ["actor.use_kl_loss=true", "algorithm.adv_estimator=reinforce_plus_plus"]
    plain = estimate(*kl)
    assert "critic: weights" not in plain
    assert plain["reference: weights"].bytes == 4 * WEIGHTS

    half = estimate(*kl, "model.dtype=bfloat16")
    assert half["actor: weights"].bytes == half["actor: gradients"].bytes == 2 * WEIGHTS
    assert half["actor: float32 copy"].bytes == 4 * WEIGHTS
    assert half["actor: optimizer"].bytes == 8 * WEIGHTS
    pure = estimate(*kl, "model.dtype=bfloat16", "update.master_weights=false")
    assert "actor: float32 copy" not in pure
    assert pure["actor: optimizer"].bytes == 4 * WEIGHTS

    lora = estimate(*kl, "model.lora_rank=4")
    adapter = 3 * 4 * (2 * 64 + 2 * 48 + 3 * 96)
    assert lora["actor: weights"].bytes == 4 * (WEIGHTS + adapter)
    assert lora["actor: gradients"].bytes == 4 * adapter
    assert lora["actor: optimizer"].bytes == 8 * adapter
    assert "reference: weights" not in lora
    assert "logits: head's gradient" not in lora

    away = estimate(*kl, "trainer.offload=true", gpu=True)
    assert away["reference: weights"].phases == {"forward"}
    assert away["actor: optimizer"].phases == {"update actor"}
    less = estimate(*kl, "model.gradient_checkpointing=true")
    assert less["actor: activations"].bytes < 0.6 * plain["actor: activations"].bytes


@pytest.mark.parametrize(
    ("overrides", "copies"),
    [
        (["update.ppo_epochs=2"], {"critic": 12 * WEIGHTS, "actor": 12 * WEIGHTS}),
        (["update.sequences_per_minibatch=4", "algorithm.adv_estimator=rloo"], {"actor": 12 * WEIGHTS}),
        (["update.ppo_epochs=2", "model.dtype=bfloat16"], {"critic": 14 * WEIGHTS, "actor": 14 * WEIGHTS}),
        (["algorithm.adv_estimator=rloo"], {}),
        (["update.ppo_epochs=2", "trainer.undo_bad_steps=false"], {}),
    ],
)
def test_copies_that_undo_a_step(estimate, overrides, copies):
    """In the CPU's memory: of each model that is not the last to step, from its own update to the update's end."""
    many = ["rollout.rollouts_per_prompt=2", *overrides]
    suffix = ": copy to undo a step"
    found = {name: part for name, part in estimate(*many).items() if name.endswith(suffix)}
    assert {name.removesuffix(suffix): part.bytes for name, part in found.items()} == copies
    phases = {"critic": {"update critic", "update actor"}, "actor": {"update actor"}}
    assert all(part.phases == phases[name.removesuffix(suffix)] for name, part in found.items())
    assert not any(name.endswith(suffix) for name in estimate(*many, gpu=True))


def test_activations_are_what_autograd_keeps():
    """Counted without weights on one and two layers, and on the real model of three, whose attention is SDPA's own."""
    tokens = 128
    estimated = measure(MODEL, torch.float32, lambda model: model).kept(tokens, checkpointing=False)
    model = LlamaForCausalLM(MODEL).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.get_decoder()(input_ids=torch.zeros(1, tokens, dtype=torch.int64), use_cache=False)
    real = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert estimated == pytest.approx(real, rel=0.05)


def test_what_would_make_it_fit(folder):
    overrides = ["update.sequences_per_microbatch=64", "data.prompts_per_step=64", "rollout.response_tokens=500"]
    config = load(None, [f"model.path={folder}", *LIMITS, *overrides]).config
    peak = plan(config, 0.0, 1e9, gpu=False).peak
    found = dict(changes(config, 0.0, 1e9, gpu=False))
    assert {"model.gradient_checkpointing=true", "update.sequences_per_microbatch=16"} <= set(found)
    assert all(value < peak for value in found.values())
    assert found["all of these"] == min(found.values())


@pytest.mark.parametrize("columns", [80, 200])
def test_the_table(folder, monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    arguments = [f"model.path={folder}", *LIMITS, "trainer.accelerator=cpu"]
    assert main(["plan", *arguments]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= columns
    for words in ("actor: optimizer", "critic: gradients", "keys and values", "update actor", "fits"):
        assert words in said
    assert main(["plan", *arguments, "--memory-gib", "0.1"]) == 1
    assert "does not fit" in capsys.readouterr().out
