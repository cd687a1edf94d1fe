"""Tokens per second of the rollout engines on the same prompts, alternating, each in a process of its own.

    python -m benchmarks.rollout --model MODEL_FOLDER [--prompts 64] [--tokens 128] [--rounds 3] [--dtype float32]

Start-up (import, load, first sync) is reported apart; a round is one batch with as many tokens for everybody.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENGINES = ("transformers", "vllm", "vllm_server")
PROMPT_TOKENS = 64
CONTEXT = 512


def serve(engine: str, args: argparse.Namespace) -> None:
    """Start one engine, say that it is ready, and run a round for every line on stdin."""
    import torch
    from transformers import AutoModelForCausalLM

    from ppo_lightning.engines.base import Request, Sampling

    started = time.perf_counter()
    dtype = getattr(torch, args.dtype)
    policy = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    policy.to("cuda" if torch.cuda.is_available() else "cpu")
    made = start(engine, args, policy)
    made.sync_weights(policy.named_parameters(), 1)
    requests = [Request(r, tuple(prompt(r)), (1, 0, 1, r, 0)) for r in range(args.prompts)]
    sampling = Sampling(1.0, args.tokens, ignore_eos=True)
    made.generate(requests[:2], Sampling(1.0, 2, ignore_eos=True))
    print(json.dumps({"ready": time.perf_counter() - started}), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        done = made.generate(requests, sampling)
        seconds = time.perf_counter() - begin
        print(json.dumps({"tokens": sum(len(c.token_ids) for c in done), "seconds": seconds}), flush=True)
    made.close()


def prompt(row: int) -> list[int]:
    return [100 + (31 * row + 17 * place) % 2000 for place in range(PROMPT_TOKENS)]


def start(engine: str, args: argparse.Namespace, policy: object) -> object:
    import torch

    if engine == "transformers":
        from ppo_lightning.engines.transformers import TransformersEngine

        return TransformersEngine(policy, 0, 64, CONTEXT)
    if engine == "vllm":
        from ppo_lightning.engines.vllm import VllmEngine, VllmOptions

        return VllmEngine(args.model, VllmOptions(args.dtype, CONTEXT, memory_gib=2.0, gpu=torch.cuda.is_available()))
    from ppo_lightning.engines.vllm_server import VllmServerEngine
    from ppo_lightning.parallel.ranks import Ranks

    folder = Path(tempfile.mkdtemp()) / "weights"
    return VllmServerEngine([args.server], folder, getattr(torch, args.dtype), CONTEXT, 600.0, Ranks())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=ENGINES[:2], default=list(ENGINES[:2]))
    parser.add_argument("--server", help="address of a running server; without it servers are left out")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        serve(args.engine, args)
        return
    results = compare(args.engines + (["vllm_server"] if args.server else []), args.rounds)
    print(f"{args.prompts} prompts x {args.tokens} tokens, {args.dtype}, best of {args.rounds} alternating rounds")
    print("| engine | tokens/s | start, s |\n|---|---|---|")
    for engine, (ready, rates) in results.items():
        print(f"| {engine} | {max(rates):.0f} | {ready:.0f} |")


def compare(engines: list[str], rounds: int) -> dict[str, tuple[float, list[float]]]:
    """Return start-up seconds and tokens per second of each round, by engine; only one engine works at a time."""
    running, results = {}, {}
    for engine in engines:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.rollout", *sys.argv[1:], "--engine", engine]
        running[engine] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        answer(running[engine])
        results[engine] = (time.perf_counter() - begin, [])
    for _ in range(rounds):
        for engine, process in running.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            said = answer(process)
            results[engine][1].append(said["tokens"] / said["seconds"])
    for process in running.values():
        process.communicate()
    return results


def answer(process: subprocess.Popen) -> dict:
    """Return the next line that is ours; libraries write to stdout too."""
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise SystemExit("an engine ended early: see its messages above")


if __name__ == "__main__":
    main()
