"""Where each stage of our step stands against what the machine can do: its operations over the rate of matmuls.

    python -m benchmarks.roofline --model MODEL_FOLDER --data TRAIN_JSONL [--algorithm ppo] [--response 64]

Takes steps as benchmarks/step.py does, without a peer. The operations are those of the model (`metrics.flops`): a
forward pass over each token, two more for a backward pass, logits at response tokens. `rows` counts a prompt once per
response, as the model FLOPs of perf/mfu/* do; `run` counts what is computed: a prompt once per group, of a response all
but the last token, a backward pass for the rows that have one. The share is
`run` over the seconds, over the rate of a square matmul of --dtype. Decoding multiplies few rows at a time: the rate of
such a matmul and the rate of memory are printed beside. What is outside generation, rewards and the models' forward and
backward passes is overhead: data flow, loss, metrics, optimizer.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.step import environment, parser, settings, start
from ppo_lightning.metrics.flops import DenseShape, dense_shape, forward_flops

STAGES = {"gen": "", "old_log_prob": "", "ref": "", "values": "", "update_actor": "actor", "update_critic": "critic"}
"""Stages that run a model, and which model they train."""
CRITIC = ("values", "update_critic")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--dtype", default="float32")
    args = options.parse_args()
    rates = measure(args)
    with tempfile.TemporaryDirectory() as folder:
        work = settings(args, folder) | {"more": [f"model.dtype={args.dtype}"]}
        (worker,) = start(work, args.engine, None, environment(args.threads)).values()
        taken = [worker.step() for _ in range(args.warm + args.rounds)][args.warm :]
        worker.process.kill()
    table(args, taken, rates)


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Return the rates of the GPU, else of the CPU: square and thin matmuls in FLOP/s, copies in bytes/s."""
    import torch
    from transformers import AutoConfig

    torch.set_num_threads(args.threads)
    config = AutoConfig.from_pretrained(args.model)
    rows, wide, hidden, inner = args.prompts * args.rollouts, 4096, config.hidden_size, config.intermediate_size
    gpu, dtype = torch.cuda.is_available(), getattr(torch, args.dtype)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda" if gpu else "cpu", dtype=dtype)

    square, left, right, source = (random(*size) for size in ((wide, wide), (rows, hidden), (hidden, inner), (2**26,)))
    target, wait = torch.empty_like(source), torch.cuda.synchronize if gpu else lambda: None
    return {
        "square": 2 * wide**3 / fastest(lambda: square @ square, wait),
        "thin": 2 * rows * hidden * inner / fastest(lambda: left @ right, wait, 200),
        "memory": 2 * source.nbytes / fastest(lambda: target.copy_(source), wait),
    }


def fastest(call: Callable[[], Any], wait: Callable[[], None], times: int = 10) -> float:
    """Return the seconds of the fastest of some calls; `wait` returns when the device has done its work."""
    found = []
    for _ in range(times):
        wait()
        begin = time.perf_counter()
        call()
        wait()
        found.append(time.perf_counter() - begin)
    return min(found)


def table(args: argparse.Namespace, taken: list[dict[str, Any]], rates: dict[str, float]) -> None:
    """Print seconds, operations and share of each stage that ran: medians over steps."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(args.model)
    print(
        f"{args.algorithm}, {args.prompts} prompts x {args.rollouts}, R = {args.response}, {args.threads} threads: "
        f"matmul {rates['square'] / 1e9:.0f} GFLOP/s, of {args.prompts * args.rollouts} rows "
        f"{rates['thin'] / 1e9:.0f}, memory {rates['memory'] / 1e9:.0f} GB/s, median of {len(taken)} steps"
    )
    print("| stage | seconds | TFLOP, rows | TFLOP, run | share of the matmul rate |\n|---|---|---|---|---|")
    for stage, trained in STAGES.items():
        seconds = statistics.median(one["timers"][stage] for one in taken)
        if seconds:
            shape = dense_shape(config, 1 if stage in CRITIC else None)
            rows, run = (
                statistics.median(flops(shape, one, args, once) * passes(one, trained) for one in taken)
                for once in (False, True)
            )
            share = run / seconds / rates["square"]
            print(f"| {stage} | {seconds:.2f} | {rows / 1e12:.2f} | {run / 1e12:.2f} | {share:.2f} |")
    overhead = statistics.median(one["overhead_s"] for one in taken)
    print(f"\noverhead: {overhead:.2f} s, {overhead / statistics.median(one['step_s'] for one in taken):.1%} of a step")


def passes(step: dict[str, Any], trained: str) -> float:
    """Return how many forward passes a stage is worth: two more for the rows with a backward pass."""
    return 1 + 2 * step["trained"].get(trained, 0)


def flops(shape: DenseShape, step: dict[str, Any], args: argparse.Namespace, once: bool) -> float:
    """Return the operations of one forward pass over a step's rows, or with `once` of what is run of them."""
    scored = sum(response for _, response in step["lengths"])
    if not once:
        return forward_flops(shape, [sum(row) for row in step["lengths"]], scored)
    rows = [prompt + max(0, response - 1) for prompt, response in step["lengths"]]
    again = forward_flops(shape, [prompt for prompt, _ in step["lengths"]], 0) * (1 - 1 / args.rollouts)
    return forward_flops(shape, rows, scored) - again


if __name__ == "__main__":
    main()
