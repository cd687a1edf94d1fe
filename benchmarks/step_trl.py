"""TRL's side of benchmarks/step.py and learning.py: a GRPOTrainer that steps for every line on stdin; needs trl."""

import ctypes
import json
import re
import resource
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

LIBC = ctypes.CDLL(None)  # whoever waits gives back the memory that it does not use
NUMBER = re.compile(r"-?[\d,]*\.?\d+")


def right(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Score 1 where the last number is the answer."""
    found = [NUMBER.findall(completion[0]["content"]) for completion in completions]
    return [float(bool(numbers) and numbers[-1] == wanted) for numbers, wanted in zip(found, answer, strict=True)]


def spread(completions: list[Any], **_: Any) -> list[float]:
    """Score a response by its text: two that differ are hardly ever worth the same."""
    return [zlib.crc32(completion[0]["content"].encode()) / 2**32 for completion in completions]


class Timed(GRPOTrainer):
    """GRPOTrainer with clocks around its phases."""

    seconds: dict[str, float]
    generated, score = 0, 0.0

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        return self._clock("generate", super()._generate, *args, **kwargs)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        rewards = self._clock("score", super()._calculate_rewards, *args, **kwargs)
        self.score = float(rewards.mean())
        return rewards

    def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
        before = sum(self.seconds.values())
        start = time.perf_counter()
        out = super()._generate_and_score_completions(*args, **kwargs)
        inner = sum(self.seconds.values()) - before
        self.seconds["log_probs"] = self.seconds.get("log_probs", 0.0) + time.perf_counter() - start - inner
        self.generated += int(out["completion_mask"].sum())
        return out

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Time the update: what is left of a step."""
        before = sum(self.seconds.values())
        start = time.perf_counter()
        out = super().training_step(*args, **kwargs)
        inner = sum(self.seconds.values()) - before
        self.seconds["update"] = self.seconds.get("update", 0.0) + time.perf_counter() - start - inner
        return out

    def _clock(self, name: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        out = call(*args, **kwargs)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        return out


class OnDemand(TrainerCallback):
    """Waits for a line before each step, and prints the figures of the step after it."""

    def __init__(self) -> None:
        self.begin, self.trainer = 0.0, None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Wait for the first step's line."""
        print(json.dumps({"step_ready": True}), flush=True)
        self.wait()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Print the step's figures, and wait for the next."""
        seconds = time.perf_counter() - self.begin
        taken = self.trainer.seconds
        phases = {name: taken.get(name, 0.0) for name in ("generate", "score", "log_probs", "update")}
        phases["other"] = seconds - sum(phases.values())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        figures = {"step_s": seconds, "phases": phases, "tokens": self.trainer.generated, "peak_gib": peak}
        figures["score"] = self.trainer.score
        print(json.dumps(figures), flush=True)
        self.wait()

    def wait(self) -> None:
        """Wait for a line; then the clocks start."""
        LIBC.malloc_trim(0)
        if not sys.stdin.readline():
            raise SystemExit(0)
        self.trainer.seconds, self.trainer.generated = {}, 0
        self.begin = time.perf_counter()


def main() -> None:
    work = json.loads(sys.argv[1])
    torch.set_num_threads(work["threads"])
    sequences = work["prompts"] * work["rollouts"]
    fixed = {} if work["real_lengths"] else {"min_new_tokens": work["response"]}
    config = GRPOConfig(
        output_dir=str(Path(work["folder"]) / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=work["micro"],
        gradient_accumulation_steps=sequences // work["micro"],
        num_generations=work["rollouts"],
        max_completion_length=work["response"],
        temperature=1.0,
        beta=0.0,
        learning_rate=work["lr"],
        weight_decay=0.01,
        lr_scheduler_type="constant",
        generation_kwargs=fixed,
        shuffle_dataset=work["shuffle"],
        seed=work["seed"],
        max_steps=1000,
        save_strategy="no",
        report_to=[],
        logging_steps=1000,
        disable_tqdm=True,
    )
    lines = [json.loads(line) for line in Path(work["data"]).read_text(encoding="utf-8").splitlines()[:2000]]
    rows = [
        {"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"].split("#### ")[-1]}
        for row in lines
    ]
    on_demand = OnDemand()
    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(work["model"]),
        reward_funcs={"right": right, "spread": spread}[work["scores"]],
        args=config,
        train_dataset=Dataset.from_list(rows),
        callbacks=[on_demand],
    )
    on_demand.trainer = trainer
    trainer.seconds = {}
    trainer.train()


if __name__ == "__main__":
    main()
