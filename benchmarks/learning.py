"""Reward against wall-clock seconds, ours and TRL's: the quickstart recipe, the same hyperparameters, several seeds.

    python -m benchmarks.learning --model MODEL_FOLDER --peer PYTHON_WITH_TRL [--seeds 1 2 3] [--plot OUT.png]

Each trainer runs in a process of its own and takes a step while the other waits; a clock counts the seconds of its own
steps, the first included. A seed ends when both have reached the target: the mean score of three steps in a row.
Validation and checkpoints are off in both. Prompts are drawn from the same rows in each trainer's own order.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.step import Worker, environment, start
from ppo_lightning.config.load import load
from ppo_lightning.data.generators import generate

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"
WINDOW = 3

Curve = list[tuple[float, float]]
"""(seconds so far, mean score of the step) of each step."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer", required=True, help="Python of an environment with trl")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--target", type=float, default=0.7, help="mean score that is to be reached")
    parser.add_argument("--steps", type=int, default=20, help="at most")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--plot", help="picture of the curves")
    parser.add_argument("--curves", help="JSON file of curves, added to; what is in it is not run again")
    args = parser.parse_args()
    kept = Path(args.curves) if args.curves else None
    curves = json.loads(kept.read_text()) if kept and kept.exists() else {}
    for seed in args.seeds:
        if str(seed) not in curves:
            curves[str(seed)] = run(args, seed)
            if kept:
                kept.write_text(json.dumps(curves))
    table(curves, args.target)
    if args.plot:
        draw(curves, args.target, args.plot)


def run(args: argparse.Namespace, seed: int) -> dict[str, Curve]:
    """Train both with one seed until they have reached the target; return their curves."""
    with tempfile.TemporaryDirectory() as folder:
        workers = start(settings(args, seed, folder), ["transformers"], args.peer, environment(args.threads))
        curves: dict[str, Curve] = {name: [] for name in workers}
        for _ in range(args.steps):
            behind = [name for name, curve in curves.items() if reached(curve, args.target) is None]
            for name in behind:
                curves[name].append(after(curves[name], workers[name]))
                print(f"# seed {seed} {name} {curves[name][-1]}", file=sys.stderr, flush=True)
        for worker in workers.values():
            worker.process.kill()
    return curves


def settings(args: argparse.Namespace, seed: int, folder: str) -> dict:
    """Return the recipe's settings as both workers read them, and write its rows for TRL."""
    config = load(str(RECIPE)).config
    name, _, options = config.data.train.partition(":")
    data = Path(folder) / "train.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in generate(name, options, "data.train")))
    return {
        "recipe": str(RECIPE),
        "folder": folder,
        "model": str(Path(args.model).resolve()),
        "data": str(data),
        "seed": seed,
        "threads": args.threads,
        "prompts": config.data.prompts_per_step,
        "rollouts": config.rollout.rollouts_per_prompt,
        "response": config.rollout.response_tokens,
        "micro": config.update.sequences_per_microbatch,
        "lr": config.actor.lr,
        "shuffle": True,
        "real_lengths": True,
        "scores": "right",
    }


def after(curve: Curve, worker: Worker) -> tuple[float, float]:
    """Take a step; return the curve's next point."""
    figures = worker.step()
    return (curve[-1][0] if curve else 0.0) + figures["step_s"], figures["score"]


def reached(curve: Curve, target: float) -> float | None:
    """Return the seconds after which the mean score of the last steps was the target; None: it has not been."""
    for end in range(WINDOW, len(curve) + 1):
        if statistics.fmean(score for _, score in curve[end - WINDOW : end]) >= target:
            return curve[end - 1][0]
    return None


def table(curves: dict[str, dict[str, Curve]], target: float) -> None:
    """Print the seconds and steps to the target by seed, and the median of the ratios."""
    print(f"mean score of {WINDOW} steps >= {target}")
    print("| seed | trainer | steps | seconds | s / step |\n|---|---|---|---|---|")
    ratios = []
    for seed, both in curves.items():
        for name, curve in both.items():
            seconds = reached(curve, target)
            shown = "not reached" if seconds is None else f"{seconds:.0f}"
            print(f"| {seed} | {name} | {len(curve)} | {shown} | {curve[-1][0] / len(curve):.1f} |")
        ours, peer = (reached(both[name], target) for name in ("ours", "TRL"))
        if ours is not None and peer is not None:
            ratios.append(peer / ours)
    if ratios:
        print(f"\nTRL / ours: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def draw(curves: dict[str, dict[str, Curve]], target: float, out: str) -> None:
    """Draw every seed's curve, one colour per trainer."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=150, layout="constrained")
    for name, colour in (("ours", "#d1495b"), ("TRL", "#30638e")):
        for place, both in enumerate(curves.values()):
            axes.plot(*zip(*both[name], strict=True), color=colour, marker=".", label=None if place else name)
    axes.axhline(target, color="#9aa5b1", linewidth=1, linestyle=":")
    axes.set(xlabel="seconds of steps", ylabel="mean score of the step", ylim=(0, 1.05), xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(out)


if __name__ == "__main__":
    main()
