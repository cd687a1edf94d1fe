"""What a person sees: a banner, a bar with the stage and an ETA, one grouped table per step, a few completions.

On a terminal through rich; anywhere else one plain line per step.
"""

import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.samples import best_and_worst
from ppo_lightning.secrets import redact

GROUPS: dict[str, dict[str, str]] = {
    "reward": {
        "score": "critic/score/mean",
        "best": "critic/score/max",
        "KL penalty": "actor/reward_kl_penalty",
        "advantage max": "critic/advantages/max",
    },
    "length": {
        "mean": "response_length/mean",
        "max": "response_length/max",
        "clipped": "response_length/clip_ratio",
        "aborted": "response/aborted_ratio",
    },
    "actor": {
        "loss": "actor/pg_loss",
        "entropy": "actor/entropy",
        "clipped": "actor/pg_clipfrac",
        "ppo KL": "actor/ppo_kl",
        "grad norm": "actor/grad_norm",
        "ref KL loss": "actor/kl_loss",
    },
    "critic": {
        "loss": "critic/vf_loss",
        "explained": "critic/vf_explained_var",
        "grad norm": "critic/grad_norm",
    },
    "seconds": {
        "step": "timing_s/step",
        "rollout": "timing_s/gen",
        "update": "timing_s/update",
        "tokens/s": "perf/throughput",
        "engine gap": "training/rollout_probs_diff_mean",
    },
}
LINE = {
    "score": "critic/score/mean",
    "len": "response_length/mean",
    "clipped": "response_length/clip_ratio",
    "entropy": "actor/entropy",
    "grad": "actor/grad_norm",
    "vf_expl": "critic/vf_explained_var",
    "gap": "training/rollout_probs_diff_mean",
}
CUT = 160


class ConsoleView:
    """Speaks on the first rank only; silent elsewhere.

    Args:
        speaks: whether this rank writes.
        samples: groups whose completions are shown per step.
    """

    def __init__(self, speaks: bool, samples: int, tokenizer: Any, console: Console | None = None) -> None:
        self.console = console or Console(quiet=not speaks, highlight=False)
        self.samples, self.tokenizer = samples, tokenizer
        self.rich = self.console.is_terminal
        self.progress: Progress | None = None
        self.step, self.steps = 0, 0
        self.first_step, self.began = 0, 0.0

    def begin(self, step: int, steps: int) -> None:
        """Open the bar at a step of a run."""
        self.step = self.first_step = step
        self.steps, self.began = steps, time.monotonic()
        if self.rich:
            columns = (TextColumn("step {task.completed}/{task.total}"), BarColumn(), TextColumn("{task.description}"))
            self.progress = Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True)
            self.progress.add_task("starting", total=steps, completed=step)
            self.progress.start()

    def end(self) -> None:
        """Close the bar."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(escape(redact(text)), soft_wrap=True)

    def on_stage(self, stage: str) -> None:
        """Show the stage that begins."""
        self._describe(stage)

    def on_rollout(self, finished: int, total: int) -> None:
        """Show how many responses of a rollout are finished."""
        self._describe(f"rollout {finished}/{total}")

    def on_step(self, step: int, metrics: dict[str, float | None], batch: DataProto) -> None:
        """Show a finished step."""
        self.step = step
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], completed=step)
        if self.rich:
            self.console.print(_table(f"step {step}/{self.steps}", metrics))
            self._show_samples(batch)
        else:
            self.say(f"step {step}/{self.steps} | {_line(metrics)} | ETA {self._eta()}")
            if step == self.first_step + 1 or step == self.steps:
                self._show_samples(batch)

    def on_validation(self, step: int, metrics: dict[str, float]) -> None:
        """Show the core validation numbers."""
        core = {k: v for k, v in metrics.items() if k.startswith("val-core/") and "/mean@" in k}
        found = "  ".join(f"{key.removeprefix('val-core/')} {_number(value)}" for key, value in core.items())
        self.say(f"validation after step {step}: {found} ({_number(metrics['timing_s/testing'])} s)")

    def _show_samples(self, batch: DataProto) -> None:
        for best, worst in best_and_worst(batch, self.tokenizer, self.samples):
            self.say(f"  prompt  {_short(best.prompt)}   [answer {best.ground_truth}]")
            self.say(f"    best  {_signed(best.score)}  {_short(best.response)}")
            self.say(f"    worst {_signed(worst.score)}  {_short(worst.response)}")

    def _describe(self, text: str) -> None:
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], description=f"{text}  ETA {self._eta()}")

    def _eta(self) -> str:
        done = self.step - self.first_step
        if not done:
            return "--:--"
        left = int((time.monotonic() - self.began) / done * (self.steps - self.step))
        return (
            f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}" if left >= 3600 else f"{left // 60}:{left % 60:02d}"
        )


def _table(title: str, metrics: dict[str, float | None]) -> Table:
    groups = {
        name: [(label, metrics[key]) for label, key in keys.items() if key in metrics] for name, keys in GROUPS.items()
    }
    groups = {name: rows for name, rows in groups.items() if rows}
    table = Table(title=title, title_justify="left", pad_edge=False, expand=False)
    for name in groups:
        table.add_column(name)
    for place in range(max(len(rows) for rows in groups.values())):
        table.add_row(
            *(
                f"{rows[place][0]} [bold]{_number(rows[place][1])}[/]" if place < len(rows) else ""
                for rows in groups.values()
            )
        )
    return table


def _line(metrics: dict[str, float | None]) -> str:
    parts = [f"{label} {_number(metrics[key])}" for label, key in LINE.items() if key in metrics]
    seconds = f"{_number(metrics['timing_s/step'])} s (rollout {_number(metrics['timing_s/gen'])})"
    return " ".join([*parts, "|", seconds])


def _number(value: float | None) -> str:
    if value is None:
        return "not finite"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:.1e}"


def _signed(score: float | None) -> str:
    return "no score" if score is None else f"{score:+.2f}"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= CUT else f"{flat[: CUT - 1]}…"
