"""Stage 9 and everything that leaves the run as a number: metrics.jsonl, rollout dumps, loggers; and validation."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L

from ppo_lightning.background import Background
from ppo_lightning.dumps import WRITERS
from ppo_lightning.loggers.sinks import Samples, Sink
from ppo_lightning.metrics.mismatch import raise_alarm
from ppo_lightning.metrics.validation import validation_metrics
from ppo_lightning.module import PPOModule
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import without_padding
from ppo_lightning.run_dir import RunDir
from ppo_lightning.samples import DATA_COLUMNS, TOKENS_PER_STEP, in_order, numbered, rollout_rows, within_budget
from ppo_lightning.stages import STAGES


class MetricsCallback(L.Callback):
    """Computes each step's metrics in one collective and hands them to every sink once.

    Args:
        run_dir: where metrics.jsonl and rollouts/ are written.
        sinks: further takers of each step, such as W&B; each works in a thread of its own.
        on_step: told (step, metrics, batch) after each step, on the first rank.
        on_validation: told (step, metrics) after each validation, on the first rank.
        say: takes a line for the console.
        writes: whether this rank writes.
    """

    def __init__(
        self,
        run_dir: RunDir,
        sinks: list[Sink],
        on_step: Callable[[int, dict, DataProto], None] = lambda step, metrics, batch: None,
        on_validation: Callable[[int, dict], None] = lambda step, metrics: None,
        say: Callable[[str], None] = lambda text: None,
        writes: bool = True,
    ) -> None:
        self.run_dir, self.writes = run_dir, writes
        self.dumps = Background("rollouts/", say)
        self.loggers = [(sink, Background(sink.name, say, tolerated=Exception)) for sink in sinks]
        self.on_step, self.on_validation, self.say = on_step, on_validation, say
        self.started = 0.0
        self.pending: dict[str, float | None] = {}
        self.samples: Samples = {}
        self.disk_full = False
        self.last_validation: tuple[int, dict[str, float]] = (-1, {})

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
        raise_alarm(metrics, pl_module.config)
        metrics["training/records_lost"] = sum(thread.take_lost() for thread in self._threads())
        self.pending = metrics
        self._keep("training", f"step_{context.step:06d}", [batch], pl_module, TOKENS_PER_STEP)
        if context.ranks.first:
            self.on_step(context.step, metrics, batch)

    def flush(self, step: int) -> None:
        """Write the step's line: training and, where it ran, validation metrics under one step number."""
        if self.pending and self.writes:
            self._tell(self.run_dir.append_metrics(step, self.pending))
            for sink, thread in self.loggers:
                thread.submit(f"step {step}", partial(sink, step, self.pending, self.samples))
        self.pending, self.samples = {}, {}

    def hold(self, step: int) -> None:
        """Put the step's line beside the file: a checkpoint is about to count the step as done."""
        if self.pending and self.writes:
            self._tell(self.run_dir.hold_metrics(step, self.pending))

    def drain(self) -> None:
        """Wait until the rollouts of the steps so far are on the disk: a checkpoint is about to count them as done."""
        self.dumps.drain()

    def close(self) -> None:
        """Write what is left; a service or disk that does not answer is waited for in bounds, and said."""
        for sink, thread in self.loggers:
            thread.submit("end", sink.close)
            thread.close()
        if self.writes:
            self._tell(self.run_dir.metrics.write())
        if self.run_dir.metrics.waiting:
            self.say(
                f"warning: metrics.jsonl lacks {len(self.run_dir.metrics.waiting)} lines: the disk took none to the end"
            )
        self.dumps.close()

    def _threads(self) -> list[Background]:
        return [self.dumps, *(thread for _, thread in self.loggers)]

    def _keep(self, split: str, name: str, batches: list[DataProto], module: PPOModule, tokens: int = 0) -> None:
        """Hand the rows of all ranks, in the order that they belong in, to W&B and to the thread that writes files."""
        logging = module.config.logging
        if logging.rollouts == "off" and logging.wandb == "off":
            return
        mine = [pair for batch in batches for pair in numbered(batch, rollout_rows(batch, module.tokenizer, tokens))]
        parts = module.ranks.gather_first(mine)
        if not module.ranks.first:
            return
        rows = within_budget(in_order(parts), tokens)
        self.samples[split] = rows
        if logging.rollouts != "off":
            self.dumps.submit(name, partial(WRITERS[logging.rollouts], self.run_dir.rollouts, name, rows))

    def _tell(self, error: OSError | None) -> None:
        """Say when the disk takes no more lines, and when it does again."""
        if error is not None and not self.disk_full:
            self.say(
                f"warning: metrics.jsonl: {error.strerror}: its lines are kept in memory until the disk takes them"
            )
        elif error is None and self.disk_full:
            self.say("metrics.jsonl: written again, nothing is missing")
        self.disk_full = error is not None

    def validated(self, step: int) -> dict[str, float]:
        """Return the validation metrics of the weights after a step, if they were validated."""
        validated, metrics = self.last_validation
        return metrics if validated == step else {}

    def on_validation_start(self, trainer: L.Trainer, pl_module: PPOModule) -> None:
        """Start the clock."""
        self.started = time.perf_counter()
        pl_module.validation = []

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: PPOModule) -> None:
        """Compute validation metrics over all ranks' rows."""
        metrics = validation_summary(pl_module)
        metrics["timing_s/testing"] = time.perf_counter() - self.started
        self.last_validation = pl_module.step, metrics
        self.pending |= metrics
        self._keep("validation", f"validation_{pl_module.step:06d}", pl_module.validation, pl_module)
        if pl_module.ranks.first:
            self.on_validation(pl_module.step, metrics)
        pl_module.validation = []


def validation_summary(module: PPOModule) -> dict[str, float]:
    """Return val-core/val-aux metrics of the rows of all ranks."""
    batches = [without_padding(batch) for batch in module.validation]
    mine = [pair for batch in batches for pair in numbered(batch, _scored_rows(batch))]
    rows = in_order(module.ranks.gather(mine))
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
