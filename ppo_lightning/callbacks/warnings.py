"""Live warnings with advice: said once per episode, kept in warnings.jsonl, counted in training/warnings."""

from collections.abc import Callable

import lightning as L

from ppo_lightning.callbacks.metrics import MetricsCallback
from ppo_lightning.metrics.advice import Watches, rules_for
from ppo_lightning.module import PPOModule
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.run_dir import METRICS, RunDir, read_metrics


class WarningsCallback(L.Callback):
    """Runs after MetricsCallback and before the step's line is written.

    Args:
        metrics: holds the step's numbers.
        run_dir: where warnings.jsonl is; its metrics.jsonl tells a resumed run what went before.
        say: takes a line for the console.
    """

    def __init__(self, metrics: MetricsCallback, run_dir: RunDir, say: Callable[[str], None]) -> None:
        self.metrics, self.run_dir, self.say = metrics, run_dir, say
        self.watches = Watches()

    def on_train_start(self, trainer: L.Trainer, pl_module: PPOModule) -> None:
        """Go through the steps before, so that an episode that is on is not said again."""
        self.watches = Watches(rules_for(pl_module.config))
        if pl_module.ranks.first and (self.run_dir.path / METRICS).is_file():
            for row in read_metrics(self.run_dir.path):
                self.watches.observe(row["step"], row)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: PPOModule,
        outputs: object,
        batch: DataProto,
        batch_idx: int,
    ) -> None:
        """Judge the step."""
        if not pl_module.ranks.first:
            return
        for warned in self.watches.observe(pl_module.step, self.metrics.pending):
            self.say(warned.text())
            self.run_dir.warnings.append(warned.row())
        self.metrics.pending["training/warnings"] = self.watches.active
