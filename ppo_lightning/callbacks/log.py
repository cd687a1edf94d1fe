"""Stage 9 for a Trainer of your own: each step's metrics go to the Trainer's loggers instead of a run directory."""

from typing import Any

import lightning as L

from ppo_lightning.callbacks.metrics import validation_summary
from ppo_lightning.callbacks.rollout import data_of
from ppo_lightning.module import PPOModule
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages import STAGES


class LogCallback(L.Callback):
    """Settles each step, counts its draws and logs its metrics; validation metrics can be monitored by their keys.

    Attributes:
        metrics: of the last step.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, float | None] = {}

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: PPOModule,
        outputs: Any,
        batch: DataProto,
        batch_idx: int,
    ) -> None:
        """Settle the step."""
        context = pl_module.context
        pl_module.run_stage(STAGES[8], batch)
        self.metrics = context.book.compute(context.ranks.gather)
        data_of(trainer).drawn += context.draws
        _log(trainer, context.step, self.metrics)

    def on_validation_start(self, trainer: L.Trainer, pl_module: PPOModule) -> None:
        """Forget the rows of an earlier validation."""
        pl_module.validation = []

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: PPOModule) -> None:
        """Compute validation metrics over all ranks' rows."""
        metrics = validation_summary(pl_module)
        pl_module.validation = []
        pl_module.log_dict(metrics, logger=False, batch_size=1)
        _log(trainer, pl_module.step, metrics)


def _log(trainer: L.Trainer, step: int, metrics: dict[str, Any]) -> None:
    """Hand metrics to the Trainer's loggers; a value that is not finite is left out."""
    for logger in trainer.loggers:
        logger.log_metrics({key: value for key, value in metrics.items() if value is not None}, step)
