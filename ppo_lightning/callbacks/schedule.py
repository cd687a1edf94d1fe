"""What follows a step, decided by the step number alone: validation, a checkpoint, the step's line, a stop."""

import time

import lightning as L

from ppo_lightning.callbacks.bad_batches import diagnosis, dump
from ppo_lightning.callbacks.metrics import MetricsCallback
from ppo_lightning.checkpoint.store import CheckpointStore
from ppo_lightning.data.datamodule import PromptDataModule
from ppo_lightning.errors import ConfigError, DivergedError
from ppo_lightning.module import PPOModule
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.signals import BrokenOffError, StopSignal


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

    def on_fit_start(self, trainer: L.Trainer, pl_module: PPOModule) -> None:
        """Do what a resumed run owes: the line of a step that was saved, and a validation that was broken off.

        Here, since a run that has all its steps begins no training any more.
        """
        run_dir, step = self.metrics.run_dir, pl_module.step
        if pl_module.ranks.first and step:
            for row in run_dir.held_metrics(step):
                self.metrics.pending = {key: value for key, value in row.items() if key != "step"}
                self.metrics.flush(row["step"])
        if pl_module.owes_validation:
            if pl_module.ranks.first:
                self.metrics.pending = run_dir.take_metrics(step)
            self._follow(trainer, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: PPOModule) -> None:
        """Validate before the first step."""
        # Lightning has put its own handler there, which ends a run without saving it, and in a collective that the
        # other ranks do not expect.
        self.stop.install()
        if pl_module.step == 0 and pl_module.config.validation.before_train and self.data.val_set is not None:
            self._validate(trainer, pl_module)
            self.metrics.flush(0)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: PPOModule,
        outputs: object,
        batch: DataProto,
        batch_idx: int,
    ) -> None:
        """Validate, save, write the line, and stop if it is time."""
        self.data.drawn += pl_module.context.draws
        self._count_skipped(pl_module, batch)
        self._follow(trainer, pl_module)

    def on_exception(self, trainer: L.Trainer, pl_module: PPOModule, exception: BaseException) -> None:
        """Save when a step was broken off, as if it had not begun."""
        if isinstance(exception, BrokenOffError):
            pl_module.take_back()
            if pl_module.step:
                self._save(pl_module)
                self.metrics.flush(pl_module.step)

    def _follow(self, trainer: L.Trainer, module: PPOModule) -> None:
        """Do what follows a finished step; a signal that comes later than the look at it ends the next step."""
        step, config = module.step, module.config
        last = step >= self.data.steps
        if self.data.val_set is not None and _due(step, config.validation.every_steps, last):
            self._validate(trainer, module)
        self.stop.asked = bool(module.ranks.most(int(self.stop.asked)))  # a signal may reach one rank only
        stopping = self.stop.asked and not last
        if _due(step, config.checkpoint.every_steps, last) or stopping:
            self._save(module)
        self.metrics.flush(step)
        if stopping:
            trainer.limit_val_batches = 0  # Lightning validates whenever it is told to stop
            trainer.should_stop = True

    def _save(self, module: PPOModule) -> None:
        """Write a checkpoint of the last step, if checkpoints are wanted and it has none yet."""
        if not module.config.checkpoint.every_steps or self.store.saved == module.step:
            return
        start = time.perf_counter()
        self.metrics.drain()
        self.metrics.hold(module.step)
        self.store.save(module, self.data, self.metrics.validated(module.step))
        if self.metrics.pending:  # else the step's line is written already
            self.metrics.pending["timing_s/save_checkpoint"] = time.perf_counter() - start

    def _validate(self, trainer: L.Trainer, module: PPOModule) -> None:
        """Validate; broken off, it is owed by the run that resumes.

        Raises:
            ConfigError: before the first step: checkpoint.best_metric is not among the metrics.
        """
        module.owes_validation = True
        self.stop.open(module.ranks)
        validate(trainer)
        self.stop.close()
        module.owes_validation = False
        wrong = self.store.without_best(self.metrics.validated(module.step))
        if wrong and not module.step:
            raise ConfigError(wrong)
        if wrong:
            self.metrics.say(wrong)

    def _count_skipped(self, module: PPOModule, batch: DataProto) -> None:
        """Keep the batch of a step without an update; end the run after too many of them in a row.

        Raises:
            DivergedError: there were.
        """
        fault = module.context.fault
        module.skipped_in_a_row = 0 if fault is None else module.skipped_in_a_row + 1
        if fault is None:
            return
        file = dump(self.metrics.run_dir.path, batch, fault, module)
        self.metrics.say(f"step {module.step} has no update: {fault}; its batch is in {file}")
        if module.skipped_in_a_row >= module.config.trainer.max_skipped_steps:
            self.metrics.flush(module.step)
            raise DivergedError(diagnosis(fault, module.skipped_in_a_row, module.step, file))


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
