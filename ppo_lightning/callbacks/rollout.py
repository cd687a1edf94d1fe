"""Owns the engine: generates at the start of each batch, with the weights of the last update."""

from collections.abc import Callable
from typing import Any

import lightning as L

from ppo_lightning.checkpoint.weights import model_checksum
from ppo_lightning.data.datamodule import PromptDataModule
from ppo_lightning.engines.base import Engine
from ppo_lightning.engines.checksum import agree
from ppo_lightning.errors import CheckpointError, EngineError
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.models.lora import named_weights
from ppo_lightning.models.offload import Offload
from ppo_lightning.module import PPOModule
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages import STAGES
from ppo_lightning.stages.rollout import Roller
from ppo_lightning.stages.score import score_rows


class RolloutCallback(L.Callback):
    """Fills each batch with responses and gives the engine the policy's weights before it samples.

    Args:
        make_engine: builds the engine; called when the strategy has set up its ranks.
        make_roller: builds what fills a batch, around the engine.
    """

    def __init__(self, make_engine: Callable[[PPOModule], Engine], make_roller: Callable[[Engine], Roller]) -> None:
        self.make_engine, self.make_roller = make_engine, make_roller
        self.interrupted: Callable[[], bool] = lambda: False
        self.engine: Engine | None = None
        self.roller: Roller | None = None

    def on_fit_start(self, trainer: L.Trainer, pl_module: PPOModule) -> None:
        """Start the engine, in the memory that resting reference and optimizers leave."""
        offload = Offload(pl_module.config.trainer.offload, pl_module.device)
        offload.rest(pl_module.reference, *trainer.optimizers)
        self._start(pl_module)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: PPOModule, batch: DataProto, batch_idx: int) -> None:
        """Stage 1."""
        context = pl_module.open_step()
        with context.timer("update_weights"):
            self._sync(pl_module)
        context.roller = self.roller
        context.epoch = data_of(trainer).epoch
        context.draw_rows = lambda number: further_rows(trainer, pl_module, number)
        pl_module.run_stage(STAGES[0], batch)

    def on_validation_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: PPOModule,
        batch: DataProto,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Generate and score the validation rows."""
        pl_module.stop.look(pl_module.ranks)
        self._sync(pl_module)
        if not len(batch):  # this rank's part of a few rows
            return
        book = MetricBook()
        self.roller.fill(batch, {}, book)
        score_rows(batch, pl_module.score_batch, book)

    def teardown(self, trainer: L.Trainer, pl_module: PPOModule, stage: str) -> None:
        """End the engine and the reward workers."""
        self._end()

    def on_exception(self, trainer: L.Trainer, pl_module: PPOModule, exception: BaseException) -> None:
        """The same for a run that fails: Lightning tears down no callback then."""
        self._end()

    def _end(self) -> None:
        if self.engine is not None:
            self.engine.close()
            if self.roller is not None and self.roller.rewards is not None:
                self.roller.rewards.close()
            self.engine = self.roller = None

    def _start(self, module: PPOModule) -> None:
        if self.engine is None:
            self.engine = self.make_engine(module)
            self.engine.version = -1
            if module.ranks.size == 1:  # several ranks end together, between steps
                self.engine.interrupted = self.interrupted
            self.roller = self.make_roller(self.engine)

    def _sync(self, module: PPOModule) -> None:
        """Give the engine the weights of the last update, once per update, and compare checksums."""
        engine = self.engine
        assert engine is not None, "on_fit_start starts the engine"
        engine.wake()
        if engine.version == module.step:
            return
        check_restored(module)
        engine.sync_weights(named_weights(module.actor), module.step)
        if module.config.rollout.check_weights:
            check_weights(engine, module.actor)


def data_of(trainer: L.Trainer) -> PromptDataModule:
    """Return the data module of the run."""
    data: PromptDataModule = vars(trainer)["datamodule"]  # an attribute that its class does not declare
    return data


def further_rows(trainer: L.Trainer, module: PPOModule, number: int) -> DataProto:
    """Return the rows of a further draw of the step at hand, on the module's device."""
    return module.open_rows(data_of(trainer).draw(number), training=True, draw=number).to(module.device)


def check_restored(module: PPOModule) -> None:
    """Compare the policy that a resumed run is about to sample from with the one that was saved, once.

    Raises:
        CheckpointError: something has changed it since it was restored.
    """
    expected, module.restored = module.restored, None
    if expected is None:
        return
    found = model_checksum(module.actor)
    if not agree(found, expected):
        raise CheckpointError(
            f"resume: before the first rollout the policy's weights have checksum {found!r}, those of the checkpoint "
            f"{expected!r}: something changed them after they were restored, such as a callback of your own"
        )


def check_weights(engine: Engine, actor: Any) -> None:
    """Compare the checksum of the engine's weights with the policy's.

    Raises:
        EngineError: they differ: the engine would sample from another policy.
    """
    expected = engine.expected_checksum(actor)
    if expected is None:
        return
    found = engine.checksum()
    if not agree(found, expected):
        raise EngineError(
            f"after the sync for version {engine.version} the engine's weights have checksum {found!r}, the policy's "
            f"{expected!r}: the engine would sample from other weights"
        )
