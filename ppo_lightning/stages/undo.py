"""What a step has changed, to be put back bit for bit: a step counts whole or not at all."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ppo_lightning.algorithms.kl_control import AdaptiveKLController, FixedKLController
from ppo_lightning.parallel.sharding import local


@dataclass(frozen=True)
class Kept:
    """One trained parameter as it was, in the CPU's memory; of a sharded one this rank's part.

    Attributes:
        parameter: the parameter itself.
        values: its numbers.
        state: what its optimizer held for it; None: nothing yet.
    """

    parameter: Tensor
    values: Tensor
    state: dict[str, Any] | None


class Undo:
    """Puts the KL coefficient and every trained model back to where the step at hand began.

    Copies are made before an optimizer's first step, and only if another optimizer step may follow in the same training
    step: the last one is checked before it is taken, and nothing after it can go wrong.

    Args:
        on: whether models are copied (`trainer.undo_bad_steps`).
        controller: of the KL coefficient.
    """

    def __init__(self, on: bool = False, controller: FixedKLController | AdaptiveKLController | None = None) -> None:
        self.on, self.controller = on, controller
        self.coefficient = None if controller is None else controller.state_dict()
        self.kept: dict[Optimizer, list[Kept]] = {}

    def keep(self, optimizer: Optimizer, last: bool) -> bool:
        """Make a copy if one is wanted and not there yet; return whether the optimizer's steps can be undone.

        Args:
            optimizer: about to step.
            last: whether no optimizer steps after this one in the training step.
        """
        if self.on and not last and optimizer not in self.kept:
            self.kept[optimizer] = list(_copies(optimizer))  # there when it is whole: a signal may break it off
        return optimizer in self.kept

    def take_back(self) -> None:
        """Put everything back; may be done again, or after it was broken off."""
        if self.controller is not None and self.coefficient is not None:
            self.controller.load_state_dict(self.coefficient)
        with torch.no_grad():
            for optimizer, parts in self.kept.items():
                for part in parts:
                    _put_back(optimizer, part)

    def forget(self) -> None:
        """Let go of the copies: the step stands, as it is now."""
        self.kept, self.coefficient = {}, None


def _copies(optimizer: Optimizer) -> Iterator[Kept]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            held = None if state is None else {name: _copy(value) for name, value in state.items()}
            yield Kept(parameter, _copy(parameter), held)


@torch.no_grad()
def _copy(value: Any) -> Any:
    return local(value).detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _put_back(optimizer: Optimizer, part: Kept) -> None:
    """Write into the tensors at hand, wherever they are by now."""
    local(part.parameter).copy_(part.values)
    if part.state is None:
        optimizer.state.pop(part.parameter, None)
        return
    own = optimizer.state[part.parameter]
    for name, value in part.state.items():
        if isinstance(value, Tensor):
            local(own[name]).copy_(value)
        else:
            own[name] = value
