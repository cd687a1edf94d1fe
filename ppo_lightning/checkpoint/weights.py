"""The files of a checkpoint that hold tensors: the actor's folder, the critic, the optimizers."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ppo_lightning.errors import CheckpointError
from ppo_lightning.models.lora import has_adapter, load_adapter, save_adapter, save_merged
from ppo_lightning.module import PPOModule

ACTOR, ADAPTER, CRITIC = "actor", "adapter", "critic.safetensors"


def write_weights(folder: Path, module: PPOModule) -> None:
    """Write models and optimizers into a new folder."""
    save_merged(module.actor, folder / ACTOR)
    if has_adapter(module.actor):
        save_adapter(module.actor, folder / ADAPTER)
    module.tokenizer.save_pretrained(folder / ACTOR)
    if module.critic is not None:
        save_file({k: v.contiguous() for k, v in module.critic.state_dict().items()}, folder / CRITIC)
    for name, optimizer in optimizers_of(module).items():
        torch.save(optimizer.state_dict(), folder / f"optimizer_{name}.pt")


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
        optimizer.load_state_dict(torch.load(folder / f"optimizer_{name}.pt", weights_only=True))


def optimizers_of(module: PPOModule) -> dict[str, torch.optim.Optimizer]:
    """Return the optimizers by the name of their model."""
    found = module.optimizers(use_pl_optimizer=False)
    found = found if isinstance(found, list) else [found]
    return dict(zip(("actor", "critic"), found, strict=False))


def _load(model: torch.nn.Module, weights: dict[str, torch.Tensor], source: Path) -> None:
    """Load weights; tied tensors are saved once and may be missing under their second name."""
    own = model.state_dict()
    for name, tensor in weights.items():
        if name not in own or own[name].shape != tensor.shape:
            raise CheckpointError(f"{source}: `{name}` does not fit the configured model")
        own[name].copy_(tensor)
    loaded = {own[name].data_ptr() for name in weights}
    missing = [name for name, tensor in own.items() if tensor.data_ptr() not in loaded]
    if missing:
        raise CheckpointError(f"{source}: holds no `{missing[0]}`")
