"""Every mutable value of a run besides weights and optimizers, listed in one place."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ppo_lightning.data.datamodule import PromptDataModule
from ppo_lightning.module import PPOModule

STATE = "state.json"


@dataclass
class RunState:
    """What a resumed run needs to go on as if it had never stopped.

    Attributes:
        step: training steps done.
        drawn: training draws consumed.
        kl_controller: the KL coefficient in force.
        schedulers: learning-rate schedules, in the order of the optimizers.
        wandb_id: run to continue in W&B.
        best: best value of checkpoint.best_metric and its step.
    """

    step: int
    drawn: int
    kl_controller: dict[str, float]
    schedulers: list[dict[str, Any]]
    wandb_id: str | None
    best: dict[str, float] | None

    @classmethod
    def of(
        cls, module: PPOModule, data: PromptDataModule, wandb_id: str | None, best: dict[str, float] | None
    ) -> "RunState":
        """Take the values of a run as they are now."""
        schedulers = [scheduler.state_dict() for scheduler in module.schedulers()]
        plain = [{k: v for k, v in saved.items() if k != "lr_lambdas"} | {"lr_lambdas": [None]} for saved in schedulers]
        return cls(module.step, data.drawn, module.kl_controller.state_dict(), plain, wandb_id, best)

    @classmethod
    def read(cls, folder: Path) -> "RunState":
        """Read the values that a checkpoint holds."""
        return cls(**json.loads((folder / STATE).read_text(encoding="utf-8")))

    def write(self, folder: Path) -> None:
        """Write the values into a checkpoint."""
        (folder / STATE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    def apply(self, module: PPOModule, data: PromptDataModule) -> None:
        """Put the values into a run whose optimizers and schedules are configured."""
        module.step, data.drawn = self.step, self.drawn
        module.kl_controller.load_state_dict(self.kl_controller)
        for scheduler, saved in zip(module.schedulers(), self.schedulers, strict=True):
            scheduler.load_state_dict(saved)
