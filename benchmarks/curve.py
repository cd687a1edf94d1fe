"""Draw a run's curve: `python benchmarks/curve.py RUN_DIR OUT.png`."""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt


def main(run_dir: str, out: str) -> None:
    lines = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
    reward = [(line["step"], line["critic/score/mean"]) for line in lines if "critic/score/mean" in line]
    core = sorted({key for line in lines for key in line if key.startswith("val-core/") and "/mean@" in key})
    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=150, layout="constrained")
    axes.plot(*zip(*reward, strict=True), color="#9aa5b1", linewidth=1.5, label="mean reward of the step's rollouts")
    for key in core:
        points = [(line["step"], line[key]) for line in lines if key in line]
        axes.plot(*zip(*points, strict=True), marker="o", color="#d1495b", linewidth=2, label=key)
        for step, value in (points[0], points[-1]):
            axes.annotate(f"{value:.2f}", (step, value), textcoords="offset points", xytext=(0, 8), ha="center")
    axes.set(xlabel="training step", ylim=(0, 1.08))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(out)
    print(f"{out}: {len(reward)} steps")


if __name__ == "__main__":
    main(*sys.argv[1:3])
