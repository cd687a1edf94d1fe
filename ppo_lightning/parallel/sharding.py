"""FSDP2: parameters, gradients and optimizer states cut over the ranks, layer by layer.

A sharded model's parameters are whole only inside its forward pass, and that pass is a collective. `within` runs any
function of the model as one, so that what reads the output head's weight directly works on the whole weight.
"""

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

T = TypeVar("T")
WITHIN = "run_within"


def shard_as(strategy: Any, models: Iterable[nn.Module | None]) -> None:
    """Shard the models if the strategy does that."""
    if getattr(strategy, "shards", False):
        for model in models:
            if model is not None:
                shard(model, strategy.device_mesh["data_parallel"])


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard every decoder layer, and what is left (embeddings, norm, head) with the model itself; in place.

    What is trained together must be of one type: the float32 value head of a bfloat16 critic is cut by itself.
    """
    dtype = next(model.parameters()).dtype
    apart = [child for child in model.children() if isinstance(child, nn.Linear) and child.weight.dtype != dtype]
    for layer in [*layers_of(model), *apart]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    setattr(model, WITHIN, types.MethodType(_run_within, model))
    register_fsdp_forward_method(model, WITHIN)


def layers_of(model: Any) -> Iterator[nn.Module]:
    """Yield the decoder's layers: the members of its longest list of modules."""
    lists = [child for child in model.get_decoder().modules() if isinstance(child, nn.ModuleList)]
    yield from max(lists, key=len, default=())


def _run_within(self: nn.Module, function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)


def within(model: nn.Module, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that reads the model's parameters, as a forward pass of it where it is sharded."""
    if not isinstance(model, FSDPModule):
        return function(*arguments)
    return getattr(model, WITHIN)(function, *arguments)


def sum_gradients_at(model: nn.Module, last: bool) -> None:
    """Tell a sharded model whether the next backward pass is the last of its optimizer step: only then it averages."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)


def whole(value: Any) -> Any:
    """Return a sharded tensor as a whole one, gathered from all ranks; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor; a whole one as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def like(value: Any, template: Any) -> Any:
    """Return a whole tensor, equal on all ranks, cut as `template` is; as it is where that is whole."""
    if not isinstance(template, DTensor) or isinstance(value, DTensor) or not isinstance(value, Tensor):
        return value
    placed = value.to(template.device)  # of its own type: an optimizer may keep float32 beside a smaller weight
    return distribute_tensor(placed, template.device_mesh, template.placements)


def whole_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state dict with whole tensors, on the CPU; with a sharded model on every rank."""
    states = {
        place: {name: _to_cpu(whole(value)) for name, value in entries.items()}
        for place, entries in state["state"].items()
    }
    return {**state, "state": states}


def load_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state dict with whole tensors into an optimizer, of sharded parameters or not."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = {
        place: {
            name: like(value, parameters[place]) if isinstance(value, Tensor) and value.ndim else value
            for name, value in entries.items()
        }
        for place, entries in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": states})


def _to_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value
