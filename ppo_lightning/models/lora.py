"""LoRA: small trained matrices beside frozen ones (Hu et al. 2021, y = W x + alpha / r B A x), through peft.

The model keeps its class, so everything else takes it as before. With the adapter off it is the model it started from:
the reference needs no weights of its own. Merged weights are computed beside the trained ones and never put in place.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ppo_lightning.config.schema import ModelConfig
from ppo_lightning.errors import CheckpointError, ConfigError
from ppo_lightning.models.token_log_probs import at_least_float32
from ppo_lightning.parallel.sharding import like, whole

NAME = "default"
"""peft's name of an adapter that has none."""

BASE, PEFT_PREFIX = ".base_layer", "base_model.model."
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"


def add_adapter(model: nn.Module, config: ModelConfig) -> nn.Module:
    """Freeze the model and put an adapter of `model.lora_rank` beside its matrices; rank 0 leaves it as it is.

    The adapter is float32 at least whatever the model is, so that small updates are not rounded away. B starts at 0:
    the adapted model starts as the model itself.

    Raises:
        ConfigError: peft is missing, or `model.lora_targets` names nothing in the model, or its head.
    """
    if not config.lora_rank:
        return model
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ConfigError("model.lora_rank needs peft: pip install 'ppo-lightning[lora]'") from None
    settings = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type] # a float serves: it is divided by the rank
        target_modules=list(config.lora_targets) or "all-linear",
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=config.path,
    )
    try:
        adapted = inject_adapter_in_model(settings, model)
    except ValueError as error:
        raise ConfigError(f"model.lora_targets={list(config.lora_targets)}: {str(error).splitlines()[0]}") from None
    if hasattr(model.get_output_embeddings(), "base_layer"):
        raise ConfigError("model.lora_targets: the output head cannot have an adapter: name matrices of the layers")
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(at_least_float32(parameter))
    return adapted


def has_adapter(model: nn.Module) -> bool:
    """Whether `add_adapter` put an adapter into the model."""
    return any(True for _ in _layers(model))


@contextmanager
def adapter_off(model: nn.Module) -> Iterator[nn.Module]:
    """Let the model compute without its adapter inside the block."""
    layers = [layer for _, layer in _layers(model)]
    for layer in layers:  # peft's own switch also changes what requires gradients
        layer._disable_adapters = True
    try:
        yield model
    finally:
        for layer in layers:
            layer._disable_adapters = False


@contextmanager
def reference_policy(actor: nn.Module, reference: nn.Module | None) -> Iterator[nn.Module]:
    """Give the reference: the model of its own, or the actor with its adapter off."""
    if reference is not None:
        yield reference
        return
    assert has_adapter(actor), "without an adapter the reference is a model of its own"
    with adapter_off(actor) as base:
        yield base


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the model's weights under the names that it has without an adapter, merged where there is one.

    A merged matrix is a new tensor, made when it is asked for: the trained ones are read and never changed. With a
    sharded model whole ones are gathered, on every rank.
    """
    for name, read in weight_readers(model).items():
        yield name, read()


def weight_readers(model: nn.Module) -> dict[str, Callable[[], Tensor]]:
    """Return how each of the weights that `named_weights` yields is read, without reading any."""
    merged = dict(_layers(model))
    found: dict[str, Callable[[], Tensor]] = {}
    for name, parameter in model.named_parameters():
        place, base, last = name.partition(BASE)
        if base and place in merged and last == ".weight":
            found[f"{place}.weight"] = partial(merge, merged[place])
        elif base and place in merged:
            found[f"{place}{last}"] = partial(whole, parameter)
        elif ".lora_" not in name:
            found[name] = partial(whole, parameter)
    return found


def merge(layer: Any) -> Tensor:
    """Return W + alpha / r B A in the type of W, added in float32 at least."""
    weight = whole(layer.get_base_layer().weight.detach())
    delta = whole(layer.get_delta_weight(NAME).detach())
    return (weight.to(torch.promote_types(weight.dtype, delta.dtype)) + delta).to(weight.dtype)


def adapter_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the adapter's own tensors, sharded or not, under the names that peft's files give them."""
    return {
        PEFT_PREFIX + name.replace(f".{NAME}.", "."): parameter
        for name, parameter in model.named_parameters()
        if ".lora_" in name
    }


def save_whole(model: Any, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Write a whole Hugging Face folder, with merged weights where there is an adapter.

    Args:
        model: of transformers.
        folder: to write into.
        state: the gathered weights of a sharded model, merged already.
    """
    merged = state is None and has_adapter(model)
    model.save_pretrained(folder, state_dict=dict(named_weights(model)) if merged else state)


def save_adapter(model: nn.Module, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Write the adapter as a peft folder: `PeftModel.from_pretrained(base, folder)` reads it.

    Args:
        model: that has it.
        folder: to write into.
        state: the gathered tensors of a sharded model's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings: Any = next(iter(vars(model)["peft_config"].values()))
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in settings.to_dict().items()}
    plain |= {"inference_mode": True, "peft_type": str(settings.peft_type.value)}
    (folder / CONFIG_FILE).write_text(json.dumps(plain, indent=1, default=str), encoding="utf-8")
    tensors: Mapping[str, Tensor] = adapter_weights(model) if state is None else state
    save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, folder / WEIGHTS_FILE)


def load_adapter(model: nn.Module, folder: Path) -> None:
    """Put a saved adapter in place, exactly.

    Raises:
        CheckpointError: it is missing or belongs to another rank or other matrices.
    """
    file, own = folder / WEIGHTS_FILE, adapter_weights(model)
    if not file.is_file():
        raise CheckpointError(f"{file}: the checkpoint holds no adapter: it was not trained with model.lora_rank")
    saved = load_file(file)
    differ = sorted(set(own) ^ set(saved)) or [name for name in own if own[name].shape != saved[name].shape]
    if differ:
        raise CheckpointError(
            f"{file}: `{differ[0]}` does not fit model.lora_rank and model.lora_targets of this configuration"
        )
    with torch.no_grad():
        for name, tensor in saved.items():
            own[name].copy_(like(tensor, own[name]))


def adapter_size(model: nn.Module) -> int:
    """Return the entries of the adapter's matrices: each token meets each of them once."""
    return sum(parameter.numel() for parameter in adapter_weights(model).values())


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "get_delta_weight"):
            yield name, module
