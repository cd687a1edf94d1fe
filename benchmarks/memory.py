"""Peak memory: the log-prob step against its textbook form; a step of B = 64, next to TRL's if its Python is given.

    python -m benchmarks.memory [--rows 8] [--sequence 2048] [--grad] [--device cuda]
    python -m benchmarks.memory --update MODEL --data JSONL [--peer PYTHON]

Every case runs in a process of its own. What is reported is the peak resident set above what the process held before
the step (model and inputs were there), as the kernel counts it (VmHWM, set back just before the step), or sampled every
10 ms where that cannot be set back; on a GPU it is what torch had allocated. Seconds are of a second call.
The log-prob case has a vocabulary of 49,152 and a model of SmolLM2-135M's shape with --layers random layers. The
textbook form makes the logits of every position, log-softmax in float32, and gathers. --update goes through
benchmarks/step.py: 8 prompts x 8 rollouts in micro-batches of 16, peak of the whole process.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

VOCABULARY, HIDDEN, INNER, HEADS, KEY_HEADS = 49152, 576, 1536, 9, 3
MIB = 2**20


class Peak:
    """The largest resident set while it watches, above where it was at the start."""

    def __enter__(self) -> "Peak":
        self.start = resident("VmRSS")
        self.sampled, self.done = self.start, threading.Event()
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self.exact = resident("VmHWM") <= self.start * 1.05
        except OSError:  # not ours to set back: sample instead
            self.exact = False
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.done.is_set():
            self.sampled = max(self.sampled, resident("VmRSS"))
            time.sleep(0.01)

    def __exit__(self, *exception: object) -> None:
        self.done.set()
        self.thread.join()
        self.above = (resident("VmHWM") if self.exact else self.sampled) - self.start


class DevicePeak:
    """The most that torch had allocated on a GPU, above where it was at the start."""

    def __enter__(self) -> "DevicePeak":
        import torch

        torch.cuda.reset_peak_memory_stats()
        self.start = torch.cuda.memory_allocated()
        return self

    def __exit__(self, *exception: object) -> None:
        import torch

        self.above = torch.cuda.max_memory_allocated() - self.start


def resident(field: str) -> int:
    """Return a size in bytes from /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}: this benchmark needs Linux")


def log_prob_case(form: str, args: argparse.Namespace) -> dict:
    """Measure one form of the log-prob step."""
    import torch

    from ppo_lightning.models.token_log_probs import plain_states, token_log_probs

    torch.manual_seed(0)
    dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
    model = random_model(args.layers).to(args.device, dtype)
    ids = torch.randint(0, VOCABULARY, (args.rows, args.sequence)).to(args.device)
    mask = torch.ones_like(ids)
    valid = mask[:, 1:].bool()

    def step() -> torch.Tensor:
        if form == "ours":
            states = plain_states(model, ids, mask, valid)
            found, _, _ = token_log_probs(model, states, ids[:, 1:][valid], 1.0)
        else:
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
            found = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)[valid]
        if args.grad:
            found.sum().backward()
        return found.detach().double().sum().cpu()

    with torch.set_grad_enabled(args.grad):
        with (Peak if args.device == "cpu" else DevicePeak)() as peak:
            total = float(step())
        gradient = float(model.get_output_embeddings().weight.grad.double().norm()) if args.grad else None
        begin = time.perf_counter()
        step()
        seconds = time.perf_counter() - begin
    return {"bytes": peak.above, "sum": total, "gradient": gradient, "seconds": seconds}


def random_model(layers: int) -> object:
    """Return a model of SmolLM2-135M's shape with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )
    return LlamaForCausalLM(config)


def run(form: str, arguments: list[str]) -> dict:
    """Measure a form in a process of its own and return what it says."""
    command = [sys.executable, "-m", "benchmarks.memory", *arguments, "--form", form]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{form} ended without a number:\n{done.stderr[-3000:]}")
    return json.loads(lines[-1])


def update(args: argparse.Namespace) -> None:
    """Take whole steps of 64 sequences with and without a peer, each trainer in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.step", "--model", args.update, "--data", args.data, "--rounds", "1"]
    subprocess.run([*command, *(["--peer", args.peer] if args.peer else [])], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: in bfloat16")
    parser.add_argument("--grad", action="store_true", help="with the backward pass")
    parser.add_argument("--update", metavar="MODEL", help="also take a step of 64 sequences with this model folder")
    parser.add_argument("--data", help="JSONL file with question and answer, for --update")
    parser.add_argument("--peer", metavar="PYTHON", help="Python of an environment with TRL, for --update")
    parser.add_argument("--form", choices=("ours", "textbook"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.form:
        print(json.dumps(log_prob_case(args.form, args)))
        return
    found = {form: run(form, sys.argv[1:]) for form in ("ours", "textbook")}
    how = "forward and backward" if args.grad else "forward"
    size = f"{args.rows} rows x {args.sequence} tokens x {VOCABULARY} vocabulary, {args.layers} layers"
    print(f"log-prob step ({how}) on {args.device}: {size}")
    print("| form | MiB above the start | seconds | sum of log-probs | head's gradient |\n|---|---|---|---|---|")
    for form, numbers in found.items():
        figures = f"{numbers['bytes'] / MIB:.0f} | {numbers['seconds']:.3f} | {numbers['sum']:.6f}"
        print(f"| {form} | {figures} | {numbers['gradient'] or '-'} |")
    print(f"textbook / ours: {found['textbook']['bytes'] / found['ours']['bytes']:.1f}", flush=True)
    if args.update:
        update(args)


if __name__ == "__main__":
    main()
