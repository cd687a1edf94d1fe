"""What follows a step, decided by the step number alone: validation, a checkpoint, the step's line, a stop."""

import time

import lightning as L

from ppo_lightning.callbacks.metrics import MetricsCallback
from ppo_lightning.checkpoint.store import CheckpointStore
from ppo_lightning.data.datamodule import PromptDataModule
from ppo_lightning.engines.base import RolloutInterruptedError
from ppo_lightning.errors import DivergedError
from ppo_lightning.module import PPOModule
from ppo_lightning.signals import StopSignal


class ScheduleCallback(L.Callback):
    """Runs after MetricsCallback at the end of each batch.

    Args:
        metrics: holds the step's numbers until they are written.
        store: writes checkpoints.
        data: knows the number of steps and the position.
        stop: set when the process was asked to end.
    """

    def __init__(
        self, metrics: MetricsCallback, store: CheckpointStore, data: PromptDataModule, stop: StopSignal
    ) -> None:
        self.metrics, self.store, self.data, self.stop = metrics, store, data, stop
        self.skipped_in_a_row = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: PPOModule) -> None:
        """Validate before the first step."""
        if pl_module.step == 0 and pl_module.config.validation.before_train and self.data.val_set is not None:
            validate(trainer)
            self.metrics.flush(0)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: PPOModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Validate, save, write the line, and stop if it is time."""
        step, config = pl_module.step, pl_module.config
        self.data.drawn += pl_module.context.draws
        last = step >= self.data.steps
        self.stop.asked = bool(pl_module.ranks.most(self.stop.asked))  # a signal may reach one rank only
        self._count_skipped(pl_module)
        if self.data.val_set is not None and _due(step, config.validation.every_steps, last):
            validate(trainer)
        if config.checkpoint.every_steps and (_due(step, config.checkpoint.every_steps, last) or self.stop.asked):
            start = time.perf_counter()
            self.metrics.drain()
            self.store.save(pl_module, self.data, self.metrics.last_validation)
            self.metrics.pending["timing_s/save_checkpoint"] = time.perf_counter() - start
        self.metrics.flush(step)
        if self.stop.asked and not last:
            trainer.limit_val_batches = 0  # Lightning validates whenever it is told to stop
            trainer.should_stop = True

    def on_exception(self, trainer: L.Trainer, pl_module: PPOModule, exception: BaseException) -> None:
        """Save when a rollout was broken off: nothing has changed since the last step."""
        if (
            isinstance(exception, RolloutInterruptedError)
            and pl_module.step
            and pl_module.config.checkpoint.every_steps
        ):
            self.store.save(pl_module, self.data, self.metrics.last_validation)
            self.metrics.flush(pl_module.step)

    def _count_skipped(self, module: PPOModule) -> None:
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if module.context.skipped else 0
        if self.skipped_in_a_row >= module.config.trainer.max_skipped_steps:
            self.metrics.flush(module.step)
            raise DivergedError(
                f"the gradient was not finite in {self.skipped_in_a_row} steps in a row (trainer.max_skipped_steps): "
                "weights are as before them. Lower actor.lr or critic.lr, or look at the rollouts of the last steps"
            )


def validate(trainer: L.Trainer) -> None:
    """Run the validation loop inside fit, where the step number asks for it.

    Lightning's own schedule counts batches since the process started, which a resumed run must not. What it does around
    its own call is done here too.
    """
    connector = trainer._logger_connector
    first_loop_iter = connector._first_loop_iter
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True
    connector._first_loop_iter = first_loop_iter


def _due(step: int, every: int, last: bool) -> bool:
    return last or (every > 0 and step % every == 0)
