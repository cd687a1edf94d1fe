"""Every mutable value of a run, listed in one place: what a checkpoint keeps, and what is made anew and why.

A test walks the objects of a run and fails on whatever changes between steps and is in neither list.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ppo_lightning.checkpoint.weights import model_checksum
from ppo_lightning.data.datamodule import PromptDataModule
from ppo_lightning.engines.checksum import agree
from ppo_lightning.errors import CheckpointError
from ppo_lightning.module import PPOModule

STATE = "state.json"

KEPT: dict[str, str] = {
    "module.actor": "actor/",
    "module.critic": "critic.safetensors",
    "optimizer.actor": "optimizer_actor.pt",
    "optimizer.critic": "optimizer_critic.pt",
    "schedule": "state.json: schedulers",
    "module.step": "state.json: step",
    "module.skipped_in_a_row": "state.json: skipped_in_a_row",
    "module.owes_validation": "state.json: owes_validation",
    "module.kl_controller": "state.json: kl_controller",
    "data.drawn": "state.json: drawn",
    "store.best": "state.json: best",
    "store.wandb_id": "state.json: wandb_id",
}
"""Where the value lives in the run -> where it lives in a checkpoint."""

REMADE: dict[str, str] = {
    "module.context": "made by open_step",
    "module.restored": "the checksum just restored, until the first rollout has used it",
    "module.validation": "rows of one validation, emptied as it begins and as it ends",
    "metrics.started": "clock of one validation",
    "metrics.pending": "metrics of one step, written as it ends",
    "metrics.last_validation": "used by the checkpoint of the same step only",
    "metrics.samples": "rows of one step, handed to the loggers as it ends",
    "metrics.run_dir": "lines that a full disk has not taken yet; they are in no file, so a resume writes them anew",
    "metrics.disk_full": "whether there are such lines",
    "metrics.dumps": "the thread that writes rollouts/, waited for before a checkpoint",
    "Restore.view": "what the console shows: begun anew at the step restored",
    "warned.watches": "rebuilt from metrics.jsonl as training starts",
    "rollouts.engine": "given the policy's weights, checked, before its first rollout",
    "rollouts.roller": "holds the engine and the reward workers, which keep nothing between steps",
    "store.saved": "spares a second write of the same step",
    "stop": "the signals of this process",
    "random": "seeded by open_step from (seed, step, rank)",
}
"""What changes during a run and is in no checkpoint -> why a resumed run has it right all the same."""


@dataclass
class RunState:
    """What a resumed run needs besides weights and optimizers to go on as if it had never stopped.

    Attributes:
        step: training steps done.
        drawn: training draws consumed.
        skipped_in_a_row: steps without an update since the last one that had one.
        owes_validation: whether the validation that follows this step was broken off.
        kl_controller: the KL coefficient in force.
        schedulers: learning-rate schedules, in the order of the optimizers.
        wandb_id: run to continue in W&B.
        best: best value of checkpoint.best_metric and its step.
        policy: checksum of the policy's weights.
        reference: checksum of the reference's, if there is one.
    """

    step: int
    drawn: int
    skipped_in_a_row: int
    owes_validation: bool
    kl_controller: dict[str, float]
    schedulers: list[dict[str, Any]]
    wandb_id: str | None
    best: dict[str, float] | None
    policy: float
    reference: float | None

    @classmethod
    def of(
        cls, module: PPOModule, data: PromptDataModule, wandb_id: str | None, best: dict[str, float] | None
    ) -> "RunState":
        """Take the values of a run as they are now."""
        schedulers = [scheduler.state_dict() for scheduler in module.schedulers()]
        return cls(
            step=module.step,
            drawn=data.drawn,
            skipped_in_a_row=module.skipped_in_a_row,
            owes_validation=module.owes_validation,
            kl_controller=module.kl_controller.state_dict(),
            schedulers=[saved | {"lr_lambdas": [None]} for saved in schedulers],
            wandb_id=wandb_id,
            best=best,
            policy=model_checksum(module.actor),
            reference=None if module.reference is None else model_checksum(module.reference),
        )

    @classmethod
    def read(cls, folder: Path) -> "RunState":
        """Read the values that a checkpoint holds."""
        return cls(**json.loads((folder / STATE).read_text(encoding="utf-8")))

    def write(self, folder: Path) -> None:
        """Write the values into a checkpoint."""
        (folder / STATE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    def check(self, module: PPOModule, source: Path) -> None:
        """Compare the models in place with those of the run that was saved.

        Raises:
            CheckpointError: the policy did not come back as it was saved, or the reference is another one.
        """
        if not agree(model_checksum(module.actor), self.policy):
            raise CheckpointError(f"{source}: the policy's weights do not add up to what was saved")
        if self.reference is None or module.reference is None:
            return
        found = model_checksum(module.reference)
        if not agree(found, self.reference):
            raise CheckpointError(
                f"{source}: its reference policy has checksum {self.reference!r}, that of "
                f"model.path={module.config.model.path} has {found!r}: KL would be measured from other weights. Give "
                "the model that the run began with"
            )

    def apply(self, module: PPOModule, data: PromptDataModule) -> None:
        """Put the values into a run whose optimizers and schedules are configured."""
        module.step, data.drawn = self.step, self.drawn
        module.skipped_in_a_row, module.owes_validation = self.skipped_in_a_row, self.owes_validation
        module.kl_controller.load_state_dict(self.kl_controller)
        for scheduler, saved in zip(module.schedulers(), self.schedulers, strict=True):
            scheduler.load_state_dict(saved)
        module.restored = self.policy
