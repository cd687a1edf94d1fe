"""The training step: read from top to bottom, this is the order in which a batch is made into an update.

on_before_batch_transfer   every prompt draw gets a uid and n rows
on_train_batch_start       1 rollout (RolloutCallback), then 2 align ... 7 advantage
training_step              8 update
on_train_batch_end         9 settle (MetricsCallback)
"""

import importlib
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import nn

from ppo_lightning.algorithms.kl_control import kl_controller
from ppo_lightning.config.schema import Config
from ppo_lightning.data.datamodule import assign_uids, with_samples
from ppo_lightning.models.critic import Critic
from ppo_lightning.models.offload import Offload
from ppo_lightning.models.optimizer import make_optimizer
from ppo_lightning.models.sharing import sharing_of
from ppo_lightning.parallel.ranks import Ranks, ranks_of
from ppo_lightning.parallel.seeds import seed_globals
from ppo_lightning.parallel.sharding import shard_as
from ppo_lightning.protocol.contract import require, require_written
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.rewards.assemble import RowScores
from ppo_lightning.signals import StopSignal
from ppo_lightning.stages import STAGES, Stage
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.undo import Undo


class PPOModule(L.LightningModule):
    """PPO and its family on manual optimization.

    Attributes:
        step: training steps done; counts batches, unlike Lightning's `global_step`, which counts optimizer steps.
        context: what the stages of the current step share.
        validation: rows scored so far in the validation at hand.
        skipped_in_a_row: steps without an update since the last one that had one.
        owes_validation: whether the validation that follows the last step was broken off.
        restored: checksum that the policy must have at its first rollout after a resume.
        stop: breaks a step off, as long as it can be undone.
    """

    def __init__(
        self,
        config: Config,
        tokenizer: Any,
        actor: nn.Module,
        critic: Critic | None = None,
        reference: nn.Module | None = None,
        score_batch: Callable[[DataProto], RowScores] | None = None,
        stop_ids: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.config, self.tokenizer = config, tokenizer
        self.actor, self.critic, self.reference = actor, critic, reference
        self.score_batch, self.stop_ids = score_batch, stop_ids
        algorithm = config.algorithm
        self.kl_controller = kl_controller(
            algorithm.kl_ctrl, algorithm.kl_coef, algorithm.kl_target, algorithm.kl_horizon
        )
        self.step = 0
        self.ranks = Ranks()
        self.context: StepContext | None = None
        self.sharing = sharing_of(config, actor, critic)
        self.announce: Callable[[str], None] = lambda stage: None
        self.validation: list[DataProto] = []
        self.skipped_in_a_row, self.owes_validation = 0, False
        self.restored: float | None = None
        self.stop = StopSignal()

    def configure_optimizers(self) -> list[dict]:
        """Return one optimizer and schedule per trained model; the stages step them."""
        models = {"actor": self.actor} | ({"critic": self.critic} if self.critic else {})
        return [make_optimizer(model, self.config, name) for name, model in models.items()]

    def configure_model(self) -> None:
        """Learn this process's place among the ranks, before any hook asks, and shard the models if that is wanted."""
        self.ranks = ranks_of(self.trainer)
        shard_as(self.trainer.strategy, (self.actor, self.critic, self.reference))

    def on_before_batch_transfer(self, batch: DataProto, dataloader_idx: int) -> DataProto:
        """Open the step: a uid per prompt draw, n rows per prompt, per-step values."""
        training = bool(self.trainer.training)
        return self.open_rows(batch, training)

    def open_rows(self, batch: DataProto, training: bool, draw: int = 0) -> DataProto:
        """Turn prompt rows into the rows of a rollout; `draw` counts the draws of one step.

        Names and numbers of rows are the same for any number of ranks, which take the prompts of a draw in turn.
        """
        places = batch.batch["dataset_index"]
        if training:
            first = draw * self.config.data.prompts_per_step + self.ranks.rank
            places = first + self.ranks.size * torch.arange(len(batch))
        assign_uids(batch, str(self.step + 1) if training else "val", places)
        samples = self.config.rollout.rollouts_per_prompt if training else self.config.validation.samples_per_prompt
        batch = with_samples(batch, samples, places)
        batch.meta_info |= {
            "global_steps": self.step + 1 if training else self.step,
            "validate": not training,
            "eos_token_id": list(self.stop_ids),
            "pad_token_id": self.tokenizer.pad_token_id,
        }
        return batch

    def open_step(self) -> StepContext:
        """Make the context of the step about to begin; RolloutCallback calls it before anything else.

        Raises:
            BrokenOffError: the process was asked to end.
        """
        self.stop.open(self.ranks)
        seed_globals(self.config.seed, self.step + 1, self.ranks.rank)
        names = ("actor", "critic") if self.critic else ("actor",)
        optimizers = self.optimizers(use_pl_optimizer=False)
        optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
        self.context = StepContext(
            config=self.config,
            step=self.step + 1,
            ranks=self.ranks,
            actor=self.actor,
            critic=self.critic,
            reference=self.reference,
            kl_controller=self.kl_controller,
            optimizers=dict(zip(names, optimizers, strict=True)),
            backward=self.manual_backward,
            sharing=self.sharing,
            offload=Offload(self.config.trainer.offload, self.device),
            score_batch=self.score_batch,
            announce=self.announce,
            undo=Undo(self.config.trainer.undo_bad_steps, self.kl_controller),
            commit=self.stop.close,
            look=lambda: self.stop.look(self.ranks),
        )
        return self.context

    def on_train_batch_start(self, batch: DataProto, batch_idx: int) -> None:
        """Stages 2 to 7; stage 1 ran in RolloutCallback, in the same hook."""
        assert self.context is not None, "RolloutCallback must be among the Trainer's callbacks: it opens each step"
        for stage in STAGES[1:7]:
            self.run_stage(stage, batch)

    def training_step(self, batch: DataProto, batch_idx: int) -> None:
        """Stage 8."""
        self.run_stage(STAGES[7], batch)
        self.stop.close()
        if self.context.fault is None and self.context.gradient_norms:
            for scheduler in self.schedulers():
                scheduler.step()
        self.context.undo.forget()
        self.step += 1

    def validation_step(self, batch: DataProto, batch_idx: int) -> None:
        """Keep the scored rows; RolloutCallback generated and scored them in the same hook's callback."""
        if len(batch):
            self.validation.append(batch)

    def take_back(self) -> None:
        """Undo what a step that is broken off has changed outside its batch; a finished one stands."""
        if self.context is not None:
            self.context.undo.take_back()

    def run_stage(self, stage: Stage, batch: DataProto) -> None:
        """Run one stage under its timer, checking what it reads and writes."""
        if stage.skipped_because(self.config):
            return
        self.context.look()
        self.context.announce(stage.name)
        require(batch, stage.reads, stage.name)
        run = getattr(importlib.import_module(f"ppo_lightning.stages.{stage.name}"), stage.name)
        with self.context.timer(stage.timer):
            run(batch, self.context)
        self.context.recorded.append(stage.name)
        require_written(batch, stage.writes, stage.name)

    def schedulers(self) -> list[Any]:
        """Return the learning-rate schedules, in the order of the optimizers."""
        found = self.lr_schedulers()
        return found if isinstance(found, list) else [found]
