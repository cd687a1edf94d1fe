"""What the fault tests run on: a model that takes milliseconds per step, a reward that varies, recorders."""

import copy
import hashlib
import json
import os
import sys
from pathlib import Path

import lightning as L
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[3]))
from benchmarks import made
from ppo_lightning.build import quiet
from ppo_lightning.checkpoint.weights import optimizers_of
from ppo_lightning.config.load import load
from ppo_lightning.config.validate import validate
from ppo_lightning.run import fit

REWARD = Path(__file__).with_name("varied_reward.py")
SMALL = [
    "data.train=arithmetic:rows=14,digits=1,seed=1",
    "data.val=null",
    "data.max_prompt_tokens=160",
    "data.prompts_per_step=4",
    "rollout.rollouts_per_prompt=2",
    "rollout.response_tokens=6",
    "update.sequences_per_minibatch=4",
    "update.sequences_per_microbatch=3",
    "actor.lr=1e-2",
    "critic.lr=1e-2",
    f"reward.path={REWARD}",
    "reward.workers=1",
    "logging.samples_per_step=0",
    "checkpoint.every_steps=1",
    "checkpoint.keep=100",
]
"""14 prompts, 4 a step: an epoch is 3 steps and 2 prompts are dropped."""

VOLATILE = ("timing", "perf/throughput", "perf/time_per_step", "perf/mfu")
EXTRAS = {
    "ppo": ["algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true", "critic.warmup_steps=1"],
    "grpo": ["algorithm.adv_estimator=grpo", "algorithm.use_kl_in_reward=true", "actor.use_kl_loss=true"],
}
MOVING = [
    "algorithm.kl_ctrl=adaptive",
    "algorithm.kl_horizon=50",
    "algorithm.kl_coef=0.1",
    "update.lr_warmup_steps=3",
    "update.shuffle=true",
    "update.ppo_epochs=2",
]
"""Options under which as much as possible moves from step to step."""


def save_model(folder, seed=0):
    """Write a random model of one layer with a tokenizer of bytes."""
    tokenizer = made.tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def start(model, folder, *overrides, name="run", resume="never", callbacks=()):
    """Run overrides in this process; return (exit code, run directory)."""
    quiet()
    torch.set_num_threads(1)
    loaded = load(None, [*SMALL, f"model.path={model}", f"output_dir={folder}", f"name={name}", *overrides])
    validate(loaded.config)
    return fit(loaded, resume, callbacks), Path(folder) / name


def lines(folder):
    """Return metrics.jsonl without what depends on the clock."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith(VOLATILE)} for row in rows]


def digests(checkpoint):
    """Return the SHA-256 of every file of a checkpoint."""
    files = json.loads((checkpoint / "COMPLETE").read_text())["files"]
    return {name: digest for name, (_, digest) in files.items()}


def tree(folder):
    """Return what is in a folder, hidden files too: {path: SHA-256}."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def differences(straight, other):
    """Return every place in which two run directories differ: numbers logged, tokens, rewards, weights, optimizers.

    A run also validates at its own end, where the other may not: validations are compared where both have them.
    """
    found = []
    left, right = ({row["step"]: row for row in lines(folder)} for folder in (straight, other))
    for step in sorted(left.keys() | right.keys()):
        one, two = left.get(step, {}), right.get(step, {})
        keys = {key for key in one.keys() | two.keys() if not key.startswith("val-") or key in one.keys() & two.keys()}
        found += [f"step {step}: {key}" for key in sorted(keys) if one.get(key) != two.get(key)]
    if len(lines(other)) != len(right):
        found.append("metrics.jsonl: a step twice")
    one, two = tree(straight / "rollouts"), tree(other / "rollouts")
    names = {name for name in one.keys() | two.keys() if "validation" not in name or name in one.keys() & two.keys()}
    found += [f"rollouts/{name}" for name in sorted(names) if one.get(name) != two.get(name)]
    for path in sorted((other / "checkpoints").glob("step_*")):
        one, two = digests(straight / "checkpoints" / path.name), digests(path)
        found += [f"{path.name}/{name}" for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]
    return found


def owner(trainer, kind):
    """Return the callback of a kind."""
    return next(callback for callback in trainer.callbacks if isinstance(callback, kind))


def state_of(module):
    """Return a copy of all that an update may change."""
    optimizers = optimizers_of(module).values()
    kept = [dict(module.named_parameters()), *(optimizer.state_dict()["state"] for optimizer in optimizers)]
    kept += [scheduler.state_dict() for scheduler in module.schedulers()]
    return copy.deepcopy([kept, module.kl_controller.state_dict()])


def equal(left, right):
    """Compare nested states bit by bit."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return callable(left) or left == right


def poisoned(number, training):
    """Return a forward hook that spoils an output, in the update's forward passes or in the others."""

    def hook(model, arguments, output):
        if torch.is_grad_enabled() == training:
            (output if isinstance(output, torch.Tensor) else output[0]).data.fill_(number)

    return hook


def in_child(action):
    """Run a function in a forked copy of this process; return its wait status. What it returns is its exit code."""
    child = os.fork()
    if child == 0:
        try:
            code = action()
        except BaseException:  # noqa: BLE001 - a child has nobody to raise to
            import traceback

            traceback.print_exc()
            code = 99
        os._exit(code or 0)
    return os.waitpid(child, 0)[1]


class At(L.Callback):
    """Calls a function when a step has been finished."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if pl_module.step == self.step:
            self.action(trainer, pl_module, batch)
