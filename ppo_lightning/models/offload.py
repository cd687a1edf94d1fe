"""Keep what rests in the CPU's memory: the reference outside stage 5, optimizer states outside the update."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Resident = nn.Module | Optimizer | None


class Offload:
    """Moves models and optimizers between a device and their home.

    Args:
        on: whether anything is moved; never where device and home are of one kind.
        device: where they work.
        home: where they rest.
    """

    def __init__(self, on: bool = False, device: torch.device | str = "cpu", home: torch.device | str = "cpu") -> None:
        self.device, self.home = torch.device(device), torch.device(home)
        self.on = on and self.device.type != self.home.type

    @contextmanager
    def awake(self, *things: Resident) -> Iterator[None]:
        """Have things on the device inside the block, and at home after it."""
        if self.on:
            for thing in things:
                _move(thing, self.device)
        try:
            yield
        finally:
            self.rest(*things)

    def rest(self, *things: Resident) -> None:
        """Bring things home and give the device's memory back to whoever asks next, such as the engine."""
        if not self.on:
            return
        for thing in things:
            _move(thing, self.home)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _move(thing: Resident, device: torch.device) -> None:
    if isinstance(thing, nn.Module):
        thing.to(device)
    elif isinstance(thing, Optimizer):
        for state in thing.state.values():
            for key, value in state.items():
                if isinstance(value, Tensor) and value.ndim:  # step counters stay where the optimizer wants them
                    state[key] = value.to(device)
