"""One run, from its directory to its exit code: the parts of `build.py` put to work on every rank."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import lightning as L
import torch

from ppo_lightning.build import build_module, build_rollouts, build_trainer
from ppo_lightning.callbacks.banner import banner
from ppo_lightning.callbacks.console import ConsoleView
from ppo_lightning.callbacks.metrics import MetricsCallback
from ppo_lightning.callbacks.schedule import ScheduleCallback
from ppo_lightning.callbacks.warnings import WarningsCallback
from ppo_lightning.checkpoint.store import CheckpointStore, wandb_id_of
from ppo_lightning.config.load import Loaded, to_yaml
from ppo_lightning.config.schema import Config
from ppo_lightning.data.datamodule import PromptDataModule
from ppo_lightning.engines.base import RolloutInterruptedError
from ppo_lightning.environment import write_environment
from ppo_lightning.loggers.open import open_sinks
from ppo_lightning.models.load import load_tokenizer
from ppo_lightning.module import PPOModule
from ppo_lightning.parallel.ranks import Ranks, ranks_of
from ppo_lightning.parallel.strategy import on_every_rank
from ppo_lightning.report.at_end import leave_report
from ppo_lightning.rewards.self_test import golds_of
from ppo_lightning.run_dir import ENVIRONMENT, RunDir
from ppo_lightning.secrets import learn
from ppo_lightning.signals import EXIT_TERMINATED, StopSignal


def fit(loaded: Loaded, resume: str = "never", callbacks: Sequence[L.Callback] = ()) -> int:
    """Run a configuration to its end; returns the exit code (0, or 143 after SIGTERM).

    Args:
        loaded: what to run.
        resume: `never`, `auto` (the newest whole checkpoint of the run directory) or the path of a checkpoint.
        callbacks: Lightning callbacks of your own; they run after ours, and before what follows a step.

    Raises:
        PPOLightningError: something that the user must change; nothing was lost.
    """
    learn(loaded.config)
    trainer = build_trainer(loaded.config, callbacks)
    return on_every_rank(trainer, lambda: fit_rank(loaded, resume, trainer))


def fit_rank(loaded: Loaded, resume: str, trainer: L.Trainer) -> int:
    """Do this rank's part of a run, the others being there; arguments and result as of `fit`."""
    config, ranks = loaded.config, ranks_of(trainer)
    run_dir, store, start = _places(config, resume, ranks)
    L.seed_everything(config.seed, verbose=False)
    if config.trainer.threads:
        torch.set_num_threads(config.trainer.threads)
    tokenizer = load_tokenizer(config.model)
    view = ConsoleView(ranks.first, config.logging.samples_per_step, tokenizer)
    data = PromptDataModule(config, tokenizer, view.say)
    config = replace(config, trainer=replace(config.trainer, steps=data.steps))
    if ranks.first:
        _describe(run_dir, config)
    module = build_module(config, tokenizer)
    stop = StopSignal()
    stop.install()
    store.wandb_id = wandb_id_of(start) if start else None
    opened = open_sinks(config, run_dir, store.wandb_id, view.say) if ranks.first else ([], store.wandb_id)
    sinks, store.wandb_id = opened
    metrics = MetricsCallback(run_dir, sinks, view.on_step, view.on_validation, view.say, ranks.first)
    golds = [gold for prompts in (data.train_set, data.val_set) if prompts for gold in golds_of(prompts.prompts)]
    rollouts = build_rollouts(config, tokenizer, module, view, golds)
    rollouts.interrupted = lambda: stop.asked
    restore, schedule = Restore(start, store, data, run_dir, view), ScheduleCallback(metrics, store, data, stop)
    warned = WarningsCallback(metrics, run_dir, view.say)
    own = [restore, rollouts, metrics, warned]
    trainer.callbacks[:] = [*own, *trainer.callbacks, schedule]  # type: ignore[attr-defined]
    for line in banner(config, run_dir, module, data):
        view.say(line)
    try:
        trainer.fit(module, datamodule=data)
    except RolloutInterruptedError:
        view.say(f"stopped during a rollout; the state after step {module.step} is what counts")
    finally:
        view.end()
        metrics.close()
        if ranks.first:
            leave_report(run_dir.path, view.say)
    view.say(f"run directory: {run_dir.path}")
    return EXIT_TERMINATED if stop.asked and module.step < data.steps else 0


def _places(config: Config, resume: str, ranks: Ranks) -> tuple[RunDir, CheckpointStore, Path | None]:
    """Return the run directory, its checkpoints, and the one to start from; the first rank looks for all."""
    make = RunDir if resume != "never" else RunDir.fresh
    run_dir = ranks.of_first(make(config.output_dir, config.name) if ranks.first else None)
    store = CheckpointStore(run_dir.checkpoints, config.checkpoint)
    return run_dir, store, ranks.of_first(store.find(resume) if ranks.first else None)


def _describe(run_dir: RunDir, config: Config) -> None:
    """Write down what runs, and on what."""
    run_dir.create()
    run_dir.write_config(to_yaml(config))
    write_environment(run_dir.path / ENVIRONMENT)


class Restore(L.Callback):
    """Puts a checkpoint's state in place once the optimizers exist, and opens the bar."""

    def __init__(
        self, path: Path | None, store: CheckpointStore, data: PromptDataModule, run_dir: RunDir, view: ConsoleView
    ) -> None:
        self.path, self.store, self.data, self.run_dir, self.view = path, store, data, run_dir, view

    def on_fit_start(self, trainer: L.Trainer, pl_module: PPOModule) -> None:
        """Restore, before the engine starts and the loader is made."""
        if self.path is not None:
            self.store.restore(self.path, pl_module, self.data)
            self.view.say(f"resume: after step {pl_module.step}, from {self.path}")
        if pl_module.ranks.first:
            self.run_dir.truncate_metrics(pl_module.step if self.path else -1)
        self.view.begin(pl_module.step, self.data.steps)
        pl_module.announce = self.view.on_stage
