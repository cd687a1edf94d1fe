"""The files of a checkpoint that hold tensors: the actor's folder, the critic, the optimizers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.serialization import get_crc32_options, set_crc32_options

from ppo_lightning.engines.checksum import checksum
from ppo_lightning.errors import CheckpointError
from ppo_lightning.models.lora import (
    adapter_weights,
    has_adapter,
    load_adapter,
    named_weights,
    save_adapter,
    save_whole,
)
from ppo_lightning.module import PPOModule
from ppo_lightning.parallel.sharding import like, load_state, local, whole, whole_state

ACTOR, ADAPTER, CRITIC = "actor", "adapter", "critic.safetensors"


def gathered(module: PPOModule) -> dict[str, dict[str, Any]]:
    """Return the whole state of models and optimizers of sharded models, gathered by all ranks; else nothing."""
    if not module.ranks.sharded:
        return {}
    models = {"actor": module.actor} | ({"critic": module.critic} if module.critic is not None else {})
    states = {name: {key: whole(v).cpu() for key, v in model.state_dict().items()} for name, model in models.items()}
    if has_adapter(module.actor):
        states["actor"] = {name: tensor.cpu() for name, tensor in named_weights(module.actor)}
        states["adapter"] = {name: whole(tensor).cpu() for name, tensor in adapter_weights(module.actor).items()}
    return states | {
        f"optimizer_{name}": whole_state(optimizer.state_dict()) for name, optimizer in optimizers_of(module).items()
    }


def write_weights(folder: Path, module: PPOModule, states: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Write models and optimizers into a new folder; yields whenever all files that are there are whole.

    Args:
        folder: to write into.
        module: the models and their optimizers.
        states: those of sharded models (`gathered`).
    """
    save_whole(module.actor, folder / ACTOR, states["actor"] if states else None)
    yield
    if has_adapter(module.actor):
        save_adapter(module.actor, folder / ADAPTER, states.get("adapter"))
    module.tokenizer.save_pretrained(folder / ACTOR)
    if module.critic is not None:
        state = states["critic"] if states else module.critic.state_dict()
        save_file({k: v.contiguous() for k, v in state.items()}, folder / CRITIC)
        yield
    for name, optimizer in optimizers_of(module).items():
        file = f"optimizer_{name}"
        _save(states[file] if states else optimizer.state_dict(), folder / f"{file}.pt")
        yield


def read_weights(folder: Path, module: PPOModule) -> None:
    """Load models and optimizers in place.

    Raises:
        CheckpointError: a tensor is missing or does not fit.
    """
    if has_adapter(module.actor):
        load_adapter(module.actor, folder / ADAPTER)
    else:
        weights: dict[str, torch.Tensor] = {}
        for file in sorted((folder / ACTOR).glob("*.safetensors")):
            weights |= load_file(file)
        _load(module.actor, weights, folder / ACTOR)
    if module.critic is not None:
        _load(module.critic, load_file(folder / CRITIC), folder / CRITIC)
    for name, optimizer in optimizers_of(module).items():
        load_state(optimizer, torch.load(folder / f"optimizer_{name}.pt", weights_only=True))


def model_checksum(model: torch.nn.Module) -> float:
    """Return a number that depends on every weight of a model; sharded ones are added up by all ranks together."""
    return checksum(named_weights(model))


def optimizers_of(module: PPOModule) -> dict[str, torch.optim.Optimizer]:
    """Return the optimizers by the name of their model."""
    found = module.optimizers(use_pl_optimizer=False)
    found = found if isinstance(found, list) else [found]
    return dict(zip(("actor", "critic"), found, strict=False))


def _save(state: dict[str, Any], path: Path) -> None:
    """Write tensors without zip's CRC-32, which takes as long as all else: the folder's marker has SHA-256."""
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        torch.save(state, path)
    finally:
        set_crc32_options(before)


def _load(model: torch.nn.Module, weights: dict[str, torch.Tensor], source: Path) -> None:
    """Load weights; tied tensors are saved once and may be missing under their second name."""
    own = model.state_dict()
    for name, tensor in weights.items():
        if name not in own or own[name].shape != tensor.shape:
            raise CheckpointError(f"{source}: `{name}` does not fit the configured model")
        own[name].copy_(like(tensor, own[name]))
    loaded = {local(own[name]).data_ptr() for name in weights}
    missing = [name for name, tensor in own.items() if local(tensor).data_ptr() not in loaded]
    if missing:
        raise CheckpointError(f"{source}: holds no `{missing[0]}`")
