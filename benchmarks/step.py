"""One GRPO step of ours and of TRL's, side by side on the same work: seconds by phase, tokens/s, peak memory.

    python -m benchmarks.step --model MODEL_FOLDER --data TRAIN_JSONL --peer PYTHON_WITH_TRL [--response 64]

The same model in float32, the same chat prompts in the same order, 8 prompts x 8 rollouts, GRPO without a reference,
one optimizer step per rollout, responses of one length (the end token is ignored; --real-lengths: it ends them). Each
trainer runs in a process of its own with the same number of threads; while one takes a step the other waits and holds
no memory that it does not use. The first step of each is not counted. --engine transformers vllm runs ours once with
each. Groups of equal rewards cost ours a forward pass only; with --scores spread no two responses are worth the same:
there is none.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PHASES = ("generate", "score", "log_probs", "update", "other")

SETUP = ("prompts", "rollouts", "response", "micro", "real_lengths", "scores", "algorithm", "engine", "threads")
"""Arguments that a step depends on; kept steps have the same."""

Steps = dict[str, list[dict[str, Any]]]
"""The figures of each step, by trainer."""


class Worker:
    """A trainer that takes one step each time it is asked."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )
        self.listen()

    def step(self) -> dict[str, Any]:
        """Take a step; return its figures."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.listen()

    def listen(self) -> dict[str, Any]:
        """Return the next line that is ours; libraries write to stdout too."""
        for line in self.process.stdout:
            if line.startswith('{"step_'):
                return json.loads(line)
        raise SystemExit(f"{self.process.args[1:3]} ended early:\n{self.log.read_text()[-3000:]}")


def main() -> None:
    args = parser(__doc__).parse_args()
    kept = Path(args.keep) if args.keep else None
    setup = {name: getattr(args, name) for name in SETUP}
    before, steps = json.loads(kept.read_text()) if kept and kept.exists() else (setup, {})
    if before != setup:
        raise SystemExit(f"--keep {kept}: its steps are of {before}, these of {setup}")
    with tempfile.TemporaryDirectory() as folder:
        workers = start(settings(args, folder), args.engine, args.peer, environment(args.threads))
        for _ in range(args.warm):
            for worker in workers.values():
                worker.step()
        for _ in range(args.rounds):
            taken = {name: worker.step() for name, worker in workers.items()}
            for name, figures in taken.items():
                print(f"# {name}: {figures['step_s']:.1f} s", file=sys.stderr, flush=True)
                steps.setdefault(name, []).append(figures)
            if kept:
                kept.write_text(json.dumps([setup, steps]))
        for worker in workers.values():
            worker.process.kill()
    table(args, steps)


def parser(doc: str) -> argparse.ArgumentParser:
    """Return the arguments that say what a step is, and how often it is taken."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", required=True)
    made.add_argument("--data", required=True, help="JSONL file with question and answer")
    made.add_argument("--peer", help="Python of an environment with trl; without it ours alone is timed")
    made.add_argument("--prompts", type=int, default=8)
    made.add_argument("--rollouts", type=int, default=8)
    made.add_argument("--response", type=int, default=64)
    made.add_argument("--micro", type=int, default=16, help="sequences per micro-batch, of both")
    made.add_argument("--warm", type=int, default=1, help="steps of each that are not counted")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--keep", metavar="FILE", help="JSON file of steps, added to after each round")
    made.add_argument("--threads", type=int, default=os.cpu_count())
    made.add_argument("--real-lengths", action="store_true")
    made.add_argument("--engine", nargs="+", choices=("transformers", "vllm"), default=["transformers"])
    made.add_argument("--scores", choices=("right", "spread"), default="spread", help="right: the answer decides")
    made.add_argument("--algorithm", choices=("grpo", "ppo"), default="grpo", help="ppo: with critic and reference")
    return made


def settings(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Return what the workers are told."""
    work = vars(args) | {"folder": folder, "model": str(Path(args.model).resolve())}
    return work | {"lr": 1e-6, "shuffle": False, "seed": 1}


def environment(threads: int) -> dict[str, str]:
    """Return the workers' environment: so many threads."""
    return os.environ | {"OMP_NUM_THREADS": str(threads)}


def start(work: dict[str, Any], engines: list[str], peer: str | None, around: dict[str, str]) -> dict[str, Worker]:
    """Start ours with each engine and, if its Python is given, TRL on the same work."""
    commands = {}
    for engine in engines:
        name = "ours" if engine == "transformers" else f"ours-{engine}"
        commands[name] = [sys.executable, str(HERE / "step_ours.py"), json.dumps(work | {"engine": engine})]
    if peer:
        commands["TRL"] = [peer, str(HERE / "step_trl.py"), json.dumps(work)]
    return {name: Worker(made, around, Path(work["folder"]) / f"{name}.log") for name, made in commands.items()}


def table(args: argparse.Namespace, steps: Steps) -> None:
    """Print medians by phase, and the ratio of whole steps with its spread over rounds."""
    lengths = "real lengths" if args.real_lengths else "fixed lengths"
    print(
        f"{args.algorithm}, {args.prompts} prompts x {args.rollouts}, R = {args.response} ({lengths}), scores: "
        f"{args.scores}, float32, {args.threads} threads, median of {len(next(iter(steps.values())))} alternating steps"
    )
    print(f"| trainer | {' | '.join(PHASES)} | step, s | tokens/s | peak GiB |\n|{'---|' * (len(PHASES) + 4)}")
    for name, taken in steps.items():
        phases = [f"{statistics.median(one['phases'][phase] for one in taken):.2f}" for phase in PHASES]
        seconds = statistics.median(one["step_s"] for one in taken)
        rate = statistics.median(one["tokens"] / one["step_s"] for one in taken)
        peak = max(one["peak_gib"] for one in taken)
        print(f"| {name} | {' | '.join(phases)} | {seconds:.2f} | {rate:.0f} | {peak:.2f} |")
    for name, taken in steps.items():
        if "TRL" in steps and name != "TRL":
            ratios = [peer["step_s"] / ours["step_s"] for ours, peer in zip(taken, steps["TRL"], strict=True)]
            print(f"\nTRL / {name}: {statistics.median(ratios):.2f} (rounds {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
