"""AdamW for weights below float32: the optimizer keeps each weight in float32 too and rounds it anew at every step.

A bfloat16 weight w moves only if a step is above w / 256 or so: at a learning rate of 1e-6 nearly every step is lost.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.optimizer import Optimizer

STATE = ("master", "exp_avg", "exp_avg_sq")


class MasterAdamW(Optimizer):
    """Decoupled weight decay Adam (Loshchilov and Hutter 2019) on float32 copies of the parameters.

    Args:
        parameters: what is trained, of any floating type.
        lr, betas, eps, weight_decay: as of torch.optim.AdamW.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the float32 copies by their gradients, and round them into the parameters."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        """One parameter at a time: only its gradient is there in float32."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["master"] = parameter.detach().float()
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(state["master"]) for _ in range(2))
        adamw(
            [state["master"]],
            [parameter.grad.float()],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            foreach=False,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        parameter.copy_(state["master"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore exactly: torch casts a state to its parameter's type, which would round the copies.

        A state without copies, of a run that kept none, gets them from the parameters at hand.
        """
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            saved = state_dict["state"].get(number)
            if saved is None:
                continue
            own = self.state[parameter]
            own |= {
                key: saved[key].detach().to(parameter.device, torch.float32, copy=True) for key in STATE if key in saved
            }
            own.setdefault("master", parameter.detach().float())
