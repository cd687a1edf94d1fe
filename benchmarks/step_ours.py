"""Our side of benchmarks/step.py and learning.py: a run that takes one step for every line on stdin."""

import ctypes
import json
import resource
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from ppo_lightning.build import quiet
from ppo_lightning.config.load import load
from ppo_lightning.config.validate import validate
from ppo_lightning.run import fit
from ppo_lightning.stages import forward

LIBC = ctypes.CDLL(None)  # whoever waits gives back the memory that it does not use

TIMERS = {
    "generate": ("gen", "update_weights"),
    "score": ("reward",),
    "log_probs": ("old_log_prob", "ref", "values"),
    "update": ("update_actor", "update_critic"),
}


class OnDemand(L.Callback):
    """Waits for a line before each step, and prints the figures of the step after it; one rank does, others follow."""

    def __init__(self) -> None:
        self.begin, self.in_models = 0.0, 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Wait for the first step's line; from now on the clock runs in forward and backward passes."""
        forward.within = self._clocked(forward.within)
        pl_module.manual_backward = self._clocked(pl_module.manual_backward)
        if trainer.is_global_zero:
            print(json.dumps({"step_ready": True}), flush=True)
        self._wait(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Print the step's figures; runs after its metrics. Wait for the next."""
        seconds = time.perf_counter() - self.begin
        timers = pl_module.context.seconds
        phases = {phase: sum(timers.get(name, 0.0) for name in names) for phase, names in TIMERS.items()}
        phases["other"] = seconds - sum(phases.values())
        tokens = int(batch.batch["response_mask"].sum())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        figures = {"step_s": seconds, "phases": phases, "tokens": tokens, "peak_gib": peak}
        waited = sum(timers.get(name, 0.0) for name in ("gen", "reward"))
        figures["overhead_s"] = seconds - waited - self.in_models
        rows = {name: map(sum, zip(*pairs, strict=True)) for name, pairs in pl_module.context.trained.items()}
        figures["trained"] = {name: trained / of_all for name, (trained, of_all) in rows.items()}
        figures["timers"] = {name: timers.get(name, 0.0) for names in TIMERS.values() for name in names}
        mask, width = batch.batch["attention_mask"], batch.batch["responses"].shape[1]
        figures["lengths"] = torch.stack([mask[:, :-width].sum(-1), mask[:, -width:].sum(-1)], dim=1).tolist()
        figures["score"] = float(batch.batch["token_level_scores"].sum(-1).mean())
        if trainer.is_global_zero:
            print(json.dumps(figures), flush=True)
        self._wait(trainer)

    def _wait(self, trainer: L.Trainer) -> None:
        LIBC.malloc_trim(0)
        if trainer.is_global_zero and not sys.stdin.readline():
            raise SystemExit(0)
        self.begin, self.in_models = time.perf_counter(), 0.0

    def _clocked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            out = call(*args, **kwargs)
            self.in_models += time.perf_counter() - start
            return out

        return timed


def main() -> None:
    work = json.loads(sys.argv[1])
    quiet()
    recipe = work.get("recipe")
    loaded = load(recipe, overrides(work) if recipe is None else of_recipe(work))
    validate(loaded.config)
    fit(loaded, callbacks=[OnDemand()])


def of_recipe(work: dict[str, Any]) -> list[str]:
    """Return what changes in a shipped recipe: nothing is validated or saved."""
    return [
        f"model.path={work['model']}",
        f"seed={work['seed']}",
        f"output_dir={work['folder']}",
        f"trainer.threads={work['threads']}",
        "name=ours",
        "data.val=null",
        "reward.workers=1",
        "trainer.steps=1000",
        "trainer.epochs=100",
        "checkpoint.every_steps=0",
        "logging.samples_per_step=0",
    ]


def spread(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """Score a response by its text: two that differ are hardly ever worth the same."""
    return zlib.crc32(solution_str.encode()) / 2**32


def overrides(work: dict[str, Any]) -> list[str]:
    sequences = work["prompts"] * work["rollouts"]
    scored = [f"reward.path={Path(__file__)}", "reward.name=spread"] if work["scores"] == "spread" else []
    return [
        *scored,
        *work.get("more", []),
        f"algorithm={work['algorithm']}",
        f"rollout={work['engine']}",
        "rollout.memory_gib=1.5",  # vLLM's keys and values: enough for 64 rows of 400 tokens
        f"model.path={work['model']}",
        f"data.train={Path(work['data']).resolve()}",
        "data.val=null",
        "data.data_source=openai/gsm8k",
        "data.shuffle=false",
        f"data.prompts_per_step={work['prompts']}",
        f"rollout.rollouts_per_prompt={work['rollouts']}",
        f"rollout.response_tokens={work['response']}",
        f"rollout.ignore_eos={str(not work['real_lengths']).lower()}",
        f"update.sequences_per_minibatch={sequences}",
        f"update.sequences_per_microbatch={work['micro']}",
        f"actor.lr={work['lr']}",
        "reward.workers=1",
        "trainer.steps=1000",
        f"trainer.threads={work['threads']}",
        "checkpoint.every_steps=0",
        "logging.samples_per_step=0",
        f"output_dir={work['folder']}",
        "name=ours",
    ]


if __name__ == "__main__":
    main()
