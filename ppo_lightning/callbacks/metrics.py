"""Stage 9 and everything that leaves the run as a number: metrics.jsonl, rollout dumps, loggers; and validation."""

import time
from collections.abc import Callable
from typing import Any

import lightning as L

from ppo_lightning.metrics.mismatch import raise_alarm
from ppo_lightning.metrics.validation import validation_metrics
from ppo_lightning.module import PPOModule
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import without_padding
from ppo_lightning.run_dir import RunDir
from ppo_lightning.samples import DATA_COLUMNS, TOKENS_PER_STEP, rollout_rows
from ppo_lightning.stages import STAGES

Sink = Callable[[int, dict[str, float | None]], None]


class MetricsCallback(L.Callback):
    """Computes each step's metrics in one collective and hands them to every sink once.

    Args:
        run_dir: where metrics.jsonl and rollouts/ are written.
        sinks: further takers of (step, metrics), such as W&B.
        on_step: told (step, metrics, batch) after each step, on the first rank.
        on_validation: told (step, metrics) after each validation, on the first rank.
        say: takes a line for the console.
    """

    def __init__(
        self,
        run_dir: RunDir,
        sinks: list[Sink],
        on_step: Callable[[int, dict, DataProto], None] = lambda step, metrics, batch: None,
        on_validation: Callable[[int, dict], None] = lambda step, metrics: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.run_dir, self.sinks = run_dir, sinks
        self.on_step, self.on_validation, self.say = on_step, on_validation, say
        self.started = 0.0
        self.pending: dict[str, float | None] = {}
        self.last_validation: dict[str, float] = {}

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: PPOModule,
        outputs: Any,
        batch: DataProto,
        batch_idx: int,
    ) -> None:
        """Settle the step; validation and saving follow it, and the line is written after them."""
        context = pl_module.context
        pl_module.run_stage(STAGES[8], batch)
        metrics = context.book.compute(context.ranks.gather)
        alarm = raise_alarm(metrics, pl_module.config)
        self.pending = metrics
        if context.ranks.first:
            if pl_module.config.logging.rollouts:
                rows = rollout_rows(batch, pl_module.tokenizer, TOKENS_PER_STEP)
                self.run_dir.write_rollouts(f"step_{context.step:06d}", rows)
            self.on_step(context.step, metrics, batch)
            if alarm:
                self.say(alarm)

    def flush(self, step: int) -> None:
        """Write the step's line: training and, where it ran, validation metrics under one step number."""
        if self.pending:
            self.run_dir.append_metrics(step, self.pending)
            for sink in self.sinks:
                sink(step, self.pending)
            self.pending = {}

    def on_validation_start(self, trainer: L.Trainer, pl_module: PPOModule) -> None:
        """Start the clock."""
        self.started = time.perf_counter()
        pl_module.validation = []

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: PPOModule) -> None:
        """Compute validation metrics over all ranks' rows."""
        metrics = validation_summary(pl_module)
        metrics["timing_s/testing"] = time.perf_counter() - self.started
        self.last_validation = metrics
        self.pending |= metrics
        if pl_module.ranks.first:
            rows = [row for batch in pl_module.validation for row in rollout_rows(batch, pl_module.tokenizer)]
            if pl_module.config.logging.rollouts:
                self.run_dir.write_rollouts(f"validation_{pl_module.step:06d}", rows)
            self.on_validation(pl_module.step, metrics)
        pl_module.validation = []


def validation_summary(module: PPOModule) -> dict[str, float]:
    """Return val-core/val-aux metrics of the rows of all ranks."""
    mine = [row for batch in module.validation for row in _scored_rows(batch)]
    rows = [row for part in module.ranks.gather(mine) for row in part]
    taken = ("uid", "data_source", "sample")
    names = sorted({name for row in rows for name in row} - set(taken))
    return validation_metrics(
        [row["data_source"] for row in rows],
        [row["uid"] for row in rows],
        {name: [row.get(name) for row in rows] for name in names},
        sample_ids=[row["sample"] for row in rows],
    )


def _scored_rows(batch: DataProto) -> list[dict[str, Any]]:
    """Return uid, data source, reward and the reward's own columns of every row; what a row lacks is absent.

    Rows whose reward failed and was dropped are left out: num_samples tells.
    """
    batch = without_padding(batch)
    columns, tensors = batch.non_tensor_batch, batch.batch
    scores, samples = tensors["rm_scores"].sum(-1).tolist(), tensors["sample_index"].tolist()
    extra = [name for name in columns if name not in DATA_COLUMNS]
    return [
        {
            "uid": columns["uid"][row],
            "data_source": columns["data_source"][row],
            "sample": (columns["uid"][row], samples[row]),
            "reward": score,
        }
        | {name: columns[name][row] for name in extra if columns[name][row] is not None}
        for row, score in enumerate(scores)
    ]
