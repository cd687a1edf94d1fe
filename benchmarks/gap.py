"""How far the probabilities of vLLM are from the trainer's, by type: the table of docs/engines.md.

    python -m benchmarks.gap --model MODEL_FOLDER --data TEST_JSONL [--prompts 24] [--tokens 64]

One engine after the other, each in a process of its own. Questions of a GSM8K-like file as chat prompts, temperature 1.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

CONTEXT = 1024


def measure(args: argparse.Namespace) -> None:
    """Sample with an engine of one type, score with trainers of both."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ppo_lightning.engines.base import Request, Sampling
    from ppo_lightning.engines.vllm import VllmEngine, VllmOptions

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    lines = Path(args.data).read_text(encoding="utf-8").splitlines()[: args.prompts]
    chats = [[{"role": "user", "content": json.loads(line)["question"]}] for line in lines]
    prompts = [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
        for chat in chats
    ]
    gpu = torch.cuda.is_available()
    engine = VllmEngine(args.model, VllmOptions(args.engine, CONTEXT, memory_gib=1.0, gpu=gpu))
    policy = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    engine.sync_weights(policy.named_parameters(), 1)
    requests = [Request(row, tuple(ids), (1, 0, 1, row, 0)) for row, ids in enumerate(prompts)]
    done = engine.generate(requests, Sampling(1.0, args.tokens, stop_ids=(tokenizer.eos_token_id,)))
    rows = [(requests[c.row].prompt_ids, c.token_ids, torch.tensor(c.log_probs)) for c in done]
    for dtype in ("float32", "bfloat16"):
        print(json.dumps({"trainer": dtype} | gap(policy.to(getattr(torch, dtype)), rows)), flush=True)
    engine.close()


def gap(policy: nn.Module, rows: list[tuple[tuple[int, ...], list[int], Tensor]]) -> dict[str, float]:
    """Return the gap over all sampled tokens between an engine's log-probs and a forward of the policy."""
    from ppo_lightning.models.token_log_probs import plain_states, token_log_probs

    probs, log_probs = [], []
    for prompt, response, engine in rows:
        ids = torch.tensor([[*prompt, *response]])
        mask = torch.ones(1, len(response), dtype=torch.bool)
        with torch.no_grad():
            states = plain_states(policy, ids, torch.ones_like(ids), mask)
            ours, _, _ = token_log_probs(policy, states, torch.tensor(response), 1.0)
        probs.append((ours.exp() - engine.exp()).abs())
        log_probs.append((ours - engine).abs())
    by_prob, by_log = torch.cat(probs), torch.cat(log_probs)
    return {"n": len(by_prob), "mean": float(by_prob.mean()), "max": float(by_prob.max()), "log": float(by_log.mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, help="JSONL file with a column `question`")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--engine", choices=("float32", "bfloat16"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        measure(args)
        return
    print("| trainer | engine | tokens | mean gap of probabilities | max | mean gap of log-probs |")
    print("|---|---|---|---|---|---|")
    for engine in ("float32", "bfloat16"):
        command = [sys.executable, "-m", "benchmarks.gap", *sys.argv[1:], "--engine", engine]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        for found in (json.loads(line) for line in said if line.startswith("{")):
            figures = f"{found['n']} | {found['mean']:.1e} | {found['max']:.0e} | {found['log']:.1e}"
            print(f"| {found['trainer']} | {engine} | {figures} |")


if __name__ == "__main__":
    main()
