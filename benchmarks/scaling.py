"""A step's seconds against prompts, rollouts, lengths of responses and prompts, and ranks, and a line through them.

    python -m benchmarks.scaling --model MODEL_FOLDER [--axes prompts rollouts response question ranks] [--plot OUT.png]

GRPO on questions of one length, responses of one length, one optimizer step. One number varies at a time, the others
stay at the base. Medians of --rounds steps after one that is not counted. The distance of a point from the line of
least squares is in shares of the point. Ranks share the same work, one thread each: the best is half the seconds.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.step import environment, start

BASE = {"prompts": 4, "rollouts": 8, "response": 32, "question": 64, "ranks": 1}
AXES = {
    "prompts": (2, 4, 8, 12),
    "rollouts": (4, 8, 16, 24),
    "response": (16, 32, 64, 96),
    "question": (32, 64, 128, 192),
    "ranks": (1, 2),
}
PHASES = ("generate", "update", "overhead")

Point = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--axes", nargs="+", choices=tuple(AXES), default=list(AXES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--plot", help="picture of the points and their lines")
    args = parser.parse_args()
    found: dict[str, list[Point]] = {}
    print(f"| varied | value | {' | '.join(f'{phase}, s' for phase in PHASES)} | step, s | off the line |")
    print(f"|{'---|' * (len(PHASES) + 4)}")
    for axis in args.axes:
        threads = 1 if axis == "ranks" else args.threads
        found[axis] = [point(args, {**BASE, axis: value}, threads) for value in AXES[axis]]
        off = distances(AXES[axis], [one["step"] for one in found[axis]])
        for value, one, far in zip(AXES[axis], found[axis], off, strict=True):
            phases = " | ".join(f"{one[phase]:.2f}" for phase in PHASES)
            print(f"| {axis} | {value} | {phases} | {one['step']:.2f} | {far:+.1%} |", flush=True)
    if args.plot:
        draw(found, args.plot)


def point(args: argparse.Namespace, sizes: dict[str, int], threads: int) -> Point:
    """Take steps of these sizes; return the median seconds of each phase."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "train.jsonl"
        questions = [" ".join(["word"] * sizes["question"]) + f" {row}" for row in range(200)]
        data.write_text("".join(json.dumps({"question": text, "answer": "#### 1"}) + "\n" for text in questions))
        work = {key: sizes[key] for key in ("prompts", "rollouts", "response")}
        work |= {"model": str(Path(args.model).resolve()), "data": str(data), "folder": folder, "threads": threads}
        work |= {"micro": 16, "lr": 1e-6, "real_lengths": False, "scores": "spread", "algorithm": "grpo", "seed": 1}
        if sizes["ranks"] > 1:
            work["more"] = [f"trainer.devices={sizes['ranks']}", "trainer.strategy=ddp"]
        (worker,) = start(work, ["transformers"], None, environment(threads)).values()
        taken = [worker.step() for _ in range(1 + args.rounds)][1:]
        worker.process.stdin.close()
        worker.process.wait()
    phases = {name: statistics.median(one["phases"][name] for one in taken) for name in ("generate", "update")}
    overhead = statistics.median(one["overhead_s"] for one in taken)
    return phases | {"overhead": overhead, "step": statistics.median(one["step_s"] for one in taken)}


def distances(sizes: tuple[int, ...], seconds: list[float]) -> list[float]:
    """Return how far each point is above the line through all, as a share of the point; 0 where two make the line."""
    slope, start = np.polyfit(sizes, seconds, 1)
    return [1 - (slope * size + start) / taken for size, taken in zip(sizes, seconds, strict=True)]


def draw(found: dict[str, list[Point]], out: str) -> None:
    """Draw the seconds of a step against each number, with the line through them."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(2.6 * len(found), 2.6), dpi=150, layout="constrained")
    for axes, (axis, points) in zip(np.atleast_1d(panels), found.items(), strict=True):
        seconds = [one["step"] for one in points]
        slope, start = np.polyfit(AXES[axis], seconds, 1)
        axes.plot(AXES[axis], [slope * size + start for size in AXES[axis]], color="#9aa5b1", linewidth=1)
        axes.plot(AXES[axis], seconds, "o", color="#d1495b")
        axes.set(xlabel=axis, ylabel="seconds a step", ylim=(0, None), xlim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out)


if __name__ == "__main__":
    main()
