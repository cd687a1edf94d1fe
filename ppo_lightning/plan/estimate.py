"""From a configuration and the model's config.json to bytes per device, part by part and phase by phase."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from ppo_lightning.config.schema import Config
from ppo_lightning.config.validate import optimizer_steps, ranks, sequences_per_minibatch, sequences_per_step
from ppo_lightning.models.load import model_path
from ppo_lightning.models.lora import add_adapter
from ppo_lightning.models.token_log_probs import KEPT_ELEMENTS, TILE_ELEMENTS
from ppo_lightning.plan.activations import Activations, measure
from ppo_lightning.stages import uses_critic, uses_reference

PHASES = ("rollout", "forward", "update critic", "update actor")
ALWAYS = frozenset(PHASES)
FLOAT32 = 4


@dataclass(frozen=True)
class Part:
    """Bytes of one thing, and the phases in which it is there."""

    name: str
    bytes: float
    phases: frozenset[str]


@dataclass(frozen=True)
class Plan:
    """Everything that one device holds."""

    parts: tuple[Part, ...]

    def total(self, phase: str) -> float:
        """Return the bytes of one phase."""
        return sum(part.bytes for part in self.parts if phase in part.phases)

    @property
    def peak(self) -> float:
        """Return the bytes of the largest phase."""
        return max(map(self.total, PHASES))


@dataclass(frozen=True)
class Model:
    """What a model's config.json says.

    Attributes:
        config: the transformers configuration.
        weights, trained: entries of all weights, and of those that are trained.
        head: entries of the output head.
        activations: bytes per token.
    """

    config: Any
    weights: int
    trained: int
    head: int
    activations: Activations


@dataclass(frozen=True)
class Load:
    """One micro-batch at its largest: tokens computed, response tokens among them, entries of its attention masks."""

    tokens: int
    responses: int
    masks: float


def read_model(config: Config, path: str) -> Model:
    """Build a model on the meta device from its config.json; no weights are read."""
    dtype = getattr(torch, config.model.dtype)
    found = AutoConfig.from_pretrained(model_path(path), trust_remote_code=config.model.trust_remote_code)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(found, dtype=dtype)
        model = add_adapter(model, config.model)
    activations = measure(found, dtype, lambda made: add_adapter(made, config.model))
    return Model(found, _entries(model), _entries(model, trained=True), _head(model), activations)


def plan(config: Config, runtime: float, device_bytes: float, gpu: bool) -> Plan:
    """Estimate what a recipe holds on each device.

    Args:
        config: the recipe.
        runtime: bytes of the process itself: Python and its libraries, or a GPU's context.
        device_bytes: of one device, of which vLLM takes its share.
        gpu: whether the device is a GPU.
    """
    actor = read_model(config, config.model.path)
    shards = ranks(config) if config.trainer.strategy == "fsdp" else 1
    load = micro_batch(config)
    parts = [Part("process and libraries", runtime, ALWAYS), *_trained("actor", actor, config, shards)]
    parts += _pass("actor", actor, load, config)
    if uses_critic(config):
        critic = actor if config.critic.path is None else read_model(config, config.critic.path)
        parts += [*_trained("critic", critic, config, shards), *_pass("critic", critic, load, config)]
    if config.trainer.undo_bad_steps and not gpu:  # a GPU's copies are in the CPU's memory
        parts += _copies(parts, config)
    if uses_reference(config) and not config.model.lora_rank:
        there = frozenset({"forward"}) if config.trainer.offload and gpu else ALWAYS
        parts.append(Part("reference: weights", actor.weights * _itemsize(config) / shards, there))
    parts += _logits(actor, load, config)
    parts += _engine(actor, config, device_bytes, gpu)
    return Plan(tuple(part for part in parts if part.bytes > 0))


def micro_batch(config: Config) -> Load:
    """Return the largest micro-batch that the limits allow: prompts and responses as long as they may be."""
    prompt, response, n = (
        config.data.max_prompt_tokens,
        config.rollout.response_tokens,
        config.rollout.rollouts_per_prompt,
    )
    width, packs = prompt + response, config.update.share_prompts and n > 1
    rows = min(config.update.sequences_per_microbatch, sequences_per_minibatch(config) // ranks(config) or 1)
    together = min(rows, n) if packs else 1
    row = prompt + together * response
    mask = response * width if packs else width * width  # the responses of a packed prompt share one
    if config.update.tokens_per_microbatch is not None:
        count = max(1, config.update.tokens_per_microbatch // row)
        return Load(config.update.tokens_per_microbatch, count * together * response, count * mask)
    count = -(-rows // together)
    return Load(rows * response + count * prompt if packs else rows * width, rows * response, count * mask)


def _trained(name: str, model: Model, config: Config, shards: int) -> list[Part]:
    """Return weights, gradients, AdamW's two moments and, under a smaller type, float32 copies of the weights."""
    size = _itemsize(config)
    adapter = bool(config.model.lora_rank)
    trained = FLOAT32 if adapter else size
    copies = config.update.master_weights and trained < FLOAT32
    state = FLOAT32 if adapter or copies else size
    own = frozenset({f"update {name}"})
    there = own if config.trainer.offload and config.trainer.accelerator != "cpu" else ALWAYS
    frozen = model.weights - model.trained
    return [
        Part(
            f"{name}: weights",
            ((frozen if adapter else model.weights) * size + adapter * model.trained * 4) / shards,
            ALWAYS,
        ),
        Part(f"{name}: gradients", model.trained * trained / shards, own),
        Part(f"{name}: optimizer", 2 * model.trained * state / shards, there),
        Part(f"{name}: float32 copy", model.trained * FLOAT32 / shards if copies else 0.0, there),
    ]


def _copies(parts: list[Part], config: Config) -> list[Part]:
    """Return the copies that undo a step: of each model that is not the last to step, from its own update on."""
    found = []
    lasts = {"critic": frozenset({"update critic", "update actor"}), "actor": frozenset({"update actor"})}
    for name in ("critic", "actor") if optimizer_steps(config) > 1 else ("critic",):
        sizes = {part.name: part.bytes for part in parts if part.name.startswith(name)}
        if sizes:
            weights = sizes[f"{name}: gradients"]  # as many bytes as the weights that are trained
            held = weights + sizes[f"{name}: optimizer"] + sizes[f"{name}: float32 copy"]
            found.append(Part(f"{name}: copy to undo a step", held, lasts[name]))
    return found


def _pass(name: str, model: Model, load: Load, config: Config) -> list[Part]:
    """Return what a forward pass keeps for its backward, its attention masks, and what a pass without one holds."""
    checkpointing = config.model.gradient_checkpointing
    own = frozenset({f"update {name}"})
    packs = config.update.share_prompts and config.rollout.rollouts_per_prompt > 1
    layers = model.config.num_hidden_layers if packs and not checkpointing else 1  # each makes its own when packed
    parts = [
        Part(f"{name}: activations", model.activations.kept(load.tokens, checkpointing), own),
        Part(f"{name}: attention masks", layers * load.masks * (1 + _itemsize(config)), own),
    ]
    if name == "actor":
        parts.append(Part("forward passes", model.activations.passing(load.tokens), frozenset({"forward"})))
    return parts


def _logits(actor: Model, load: Load, config: Config) -> list[Part]:
    """Return the logits at hand, their exponentials and one more; in the update the head's gradient, and few logits."""
    every = load.responses * actor.config.vocab_size
    chunk = 3.0 * min(every, TILE_ELEMENTS) * FLOAT32
    kept = every * FLOAT32 if every <= KEPT_ELEMENTS else 0
    head = 0 if config.model.lora_rank else actor.head
    return [
        Part("logits: one tile", chunk, frozenset({"forward", "update actor"})),
        Part("logits: kept for the gradient", kept, frozenset({"update actor"})),
        Part("logits: head's gradient", head * FLOAT32, frozenset({"update actor"})),
    ]


def _engine(actor: Model, config: Config, device_bytes: float, gpu: bool) -> list[Part]:
    """Return what generates: keys and values of a batch, and weights of its own where it has some."""
    rollout = config.rollout
    dtype = config.model.dtype if rollout.dtype == "model" else rollout.dtype
    size = getattr(torch, dtype).itemsize
    weights = actor.weights * size
    if rollout.engine == "vllm_server":
        return []
    if rollout.engine == "vllm":
        if gpu:
            return [Part("vLLM: its share", rollout.memory_fraction * device_bytes, frozenset({"rollout"}))]
        return [
            Part("vLLM: weights", weights, ALWAYS),
            Part("vLLM: keys and values", rollout.memory_gib * 2**30, ALWAYS),
        ]
    rows = min(rollout.sequences_per_batch, sequences_per_step(config) // ranks(config) or 1)
    tokens = rows * (config.data.max_prompt_tokens + rollout.response_tokens)
    during = frozenset({"rollout"})
    return [
        Part("engine: weights", weights if dtype != config.model.dtype else 0.0, ALWAYS),
        Part("engine: keys and values", tokens * _key_values(actor.config) * size, during),
        Part("engine: logits", 4.0 * rows * actor.config.vocab_size * FLOAT32, during),
    ]


def _key_values(shape: Any) -> int:
    """Return the entries of keys and values per token, over all layers of a transformers configuration."""
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    head_size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    return 2 * shape.num_hidden_layers * heads * head_size


def _itemsize(config: Config) -> int:
    return getattr(torch, config.model.dtype).itemsize


def _entries(model: nn.Module, trained: bool = False) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trained)


def _head(model: Any) -> int:
    return model.get_output_embeddings().weight.numel()


def largest(parts: Sequence[Part], phase: str, count: int = 3) -> list[Part]:
    """Return the largest parts of a phase."""
    return sorted((part for part in parts if phase in part.phases), key=lambda part: -part.bytes)[:count]
