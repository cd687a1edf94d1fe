"""Peak memory: the log-prob step against its textbook form, and a whole update, next to TRL's if its Python is given.

    python -m benchmarks.memory [--rows 8] [--sequence 2048] [--grad] [--update MODEL] [--peer PYTHON]

Every case runs in a process of its own. What is reported is the peak resident set above what the process held before
the step (model and inputs were there), as the kernel counts it (VmHWM, set back just before the step), or sampled every
10 ms where that cannot be set back.
The log-prob case has a vocabulary of 49,152 and a model of SmolLM2-135M's shape with --layers random layers. The
textbook form makes the logits of every position, log-softmax in float32, and gathers. --update takes B = 64 rows of
105 + 64 tokens in micro-batches of 16 through forward, backward and AdamW; the peer does the same rows with
GRPOTrainer's own loss and AdamW. Further arguments are options of our update, such as update.share_prompts=false.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

VOCABULARY, HIDDEN, INNER, HEADS, KEY_HEADS = 49152, 576, 1536, 9, 3
PROMPT, RESPONSE, BATCH, MICRO = 105, 64, 64, 16
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
    model = random_model(args.layers)
    ids = torch.randint(0, VOCABULARY, (args.rows, args.sequence))
    mask = torch.ones_like(ids)
    valid = mask[:, 1:].bool()
    with Peak() as peak, torch.set_grad_enabled(args.grad):
        if form == "ours":
            states = plain_states(model, ids, mask, valid)
            found, _, _ = token_log_probs(model, states, ids[:, 1:][valid], 1.0)
        else:
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
            found = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)[valid]
        if args.grad:
            found.sum().backward()
    head = None if not args.grad else float(model.get_output_embeddings().weight.grad.double().norm())
    return {"bytes": peak.above, "sum": float(found.detach().double().sum()), "gradient": head}


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


def update_case(form: str, args: argparse.Namespace) -> dict:
    """Measure one optimizer step on 64 rows: ours, or this process's TRL."""
    import torch

    torch.manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (BATCH, PROMPT + RESPONSE))
    ids[:, :PROMPT] = ids[:: BATCH // 8, :PROMPT].repeat_interleave(BATCH // 8, 0)  # eight prompts
    advantages = torch.randn(BATCH)
    take = ours_update if form == "ours" else trl_update
    start = resident("VmRSS")
    begin = time.perf_counter()
    with Peak() as peak:
        take(args.update, ids, advantages, args.peer_options)
    return {"bytes": peak.above, "process": peak.above + peak.start, "before": start, "s": time.perf_counter() - begin}


def ours_update(model_path: str, ids: object, advantages: object, options: list[str]) -> None:
    import torch

    from ppo_lightning.config.load import load
    from ppo_lightning.models.load import load_causal_lm
    from ppo_lightning.models.optimizer import make_optimizer
    from ppo_lightning.models.sharing import sharing_of
    from ppo_lightning.protocol.columns import as_column
    from ppo_lightning.protocol.data_proto import DataProto
    from ppo_lightning.stages.forward import log_probs, micros

    overrides = [
        f"model.path={model_path}",
        f"update.sequences_per_microbatch={MICRO}",
        "rollout.rollouts_per_prompt=8",
    ]
    config = load(None, [*overrides, "algorithm.adv_estimator=grpo", *options]).config
    model = load_causal_lm(config.model)
    optimizer = make_optimizer(model, config, "actor")["optimizer"]
    mask = torch.ones_like(ids)
    rows = {"input_ids": ids, "attention_mask": mask, "responses": ids[:, PROMPT:], "response_mask": mask[:, PROMPT:]}
    rows["advantages"] = advantages[:, None].expand(-1, RESPONSE).contiguous()
    batch = DataProto.from_dict(rows, {"uid": as_column([f"u{row // 8}" for row in range(BATCH)])})
    for micro in micros(batch, config.update, sharing_of(config, model, None)):
        current, _, _ = log_probs(model, micro, 1.0, entropy=True)
        ratio = torch.exp(current - current.detach())
        loss = -(ratio * micro.batch.batch["advantages"] * micro.mask).sum() / (BATCH * RESPONSE)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def trl_update(model_path: str, ids: object, advantages: object, options: list[str]) -> None:
    """The same rows through GRPOTrainer's own `_compute_loss` in TRL; its Trainer makes the optimizer."""
    import torch
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir="/tmp/trl_memory",
        per_device_train_batch_size=MICRO,
        gradient_accumulation_steps=BATCH // MICRO,
        num_generations=8,
        max_completion_length=RESPONSE,
        beta=0.0,
        report_to=[],
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
    )
    data = [{"prompt": "x"}] * 8
    from datasets import Dataset

    trainer = GRPOTrainer(
        model_path, lambda completions, **_: [0.0] * len(completions), config, Dataset.from_list(data)
    )
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = BATCH // MICRO
    mask = torch.ones_like(ids)
    for start in range(0, BATCH, MICRO):
        rows = slice(start, start + MICRO)
        inputs = {
            "prompt_ids": ids[rows, :PROMPT],
            "prompt_mask": mask[rows, :PROMPT],
            "completion_ids": ids[rows, PROMPT:],
            "completion_mask": mask[rows, PROMPT:],
            "advantages": advantages[rows],
            "num_items_in_batch": torch.tensor(BATCH * RESPONSE),
        }
        trainer._compute_loss(trainer.model, inputs).backward()
    torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
    trainer.optimizer.step()


def run(case: str, form: str, python: str, arguments: list[str]) -> dict:
    """Run a case in a process of its own and return what it says."""
    command = [python, str(Path(__file__).resolve()), *arguments, "--case", case, "--form", form]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{case} {form} ended without a number:\n{done.stderr[-3000:]}")
    return json.loads(lines[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--grad", action="store_true", help="with the backward pass")
    parser.add_argument("--update", metavar="MODEL", help="also measure an update of this model folder")
    parser.add_argument("--peer", metavar="PYTHON", help="Python of an environment with TRL, for --update")
    parser.add_argument("--case", choices=("log_prob", "update"), help=argparse.SUPPRESS)
    parser.add_argument("--form", help=argparse.SUPPRESS)
    args, args.peer_options = parser.parse_known_args()
    if args.case:
        print(json.dumps((log_prob_case if args.case == "log_prob" else update_case)(args.form, args)))
        return
    given = sys.argv[1:]
    found = {form: run("log_prob", form, sys.executable, given) for form in ("ours", "textbook")}
    how = "forward and backward" if args.grad else "forward"
    size = f"{args.rows} rows x {args.sequence} tokens x {VOCABULARY} vocabulary, {args.layers} layers"
    print(f"log-prob step ({how}): {size}")
    print("| form | MiB above the start | sum of log-probs | norm of the head's gradient |\n|---|---|---|---|")
    for form, numbers in found.items():
        print(f"| {form} | {numbers['bytes'] / MIB:.0f} | {numbers['sum']:.6f} | {numbers['gradient'] or '-'} |")
    print(f"textbook / ours: {found['textbook']['bytes'] / found['ours']['bytes']:.1f}")
    if args.update:
        pythons = {"ours": sys.executable} | ({"TRL": args.peer} if args.peer else {})
        print(f"\nupdate: {BATCH} rows x ({PROMPT} + {RESPONSE}) tokens in micro-batches of {MICRO}, forward to AdamW")
        print("| who | process peak, MiB | seconds |\n|---|---|---|")
        for form, python in pythons.items():
            numbers = run("update", form, python, given)
            print(f"| {form} | {numbers['process'] / MIB:.0f} | {numbers['s']:.0f} |")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
