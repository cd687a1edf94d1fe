"""Runs on several ranks: `python rank_jobs.py FILE` does a list of runs one after the other, as one rank of a group.

One process per rank does all runs of a test file: starting one costs more than a run.
"""

import itertools
import json
import os
import signal
import socket
import string
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import lightning as L
import torch
import torch.distributed as dist
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

COLLECTIVES = (
    "all_reduce",
    "all_gather_into_tensor",
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "broadcast",
    "barrier",
)


FILES = Path(__file__).parent / "files"
SMALL = [
    "data.train=arithmetic:rows=40,digits=1,seed=1",
    "data.val=null",
    "data.max_prompt_tokens=64",
    "data.prompts_per_step=8",
    "rollout.rollouts_per_prompt=2",
    "rollout.response_tokens=12",
    "rollout.sequences_per_batch=2",  # one shape on any number of ranks: the same last bits, the same tokens
    "update.sequences_per_minibatch=8",
    "update.sequences_per_microbatch=4",
    "actor.lr=1e-5",
    "critic.lr=1e-5",
    "trainer.threads=1",
    "reward.workers=1",
    "reward.timeout_s=60",
    f"reward.path={FILES / 'rank_rewards.py'}",
    "logging.samples_per_step=0",
    "checkpoint.every_steps=0",
]


def save_small_model(folder):
    """Save a random model of two layers over single characters, whose responses end early now and then."""
    characters = sorted(set(string.printable) - set("\t\r\x0b\x0c"))
    vocabulary = {name: place for place, name in enumerate(["<pad>", "<eos>", "<unk>", *characters])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    plain.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, **names)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.get_input_embeddings().weight[1] *= 6
    model.save_pretrained(folder)
    return str(folder)


def job(folder, model, name, *overrides, ranks=1, strategy="ddp", **more):
    """Return a run as `do` takes it; its directory is folder/<ranks>/<name>."""
    where = [f"model.path={model}", f"output_dir={folder}/{ranks}", f"name={name}"]
    spread = [f"strategy={strategy}", f"trainer.devices={ranks}"] if ranks > 1 else []
    return {"overrides": [*SMALL, *where, *overrides, *spread], "out": f"{folder}/{ranks}/{name}", **more}


def digests(checkpoint):
    """Return the SHA-256 of the files of a checkpoint that hold what is trained."""
    files = json.loads((Path(checkpoint) / "COMPLETE").read_text())["files"]
    return {name: digest for name, (_, digest) in files.items() if name.endswith((".safetensors", ".pt"))}


def lines(folder):
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def kept(folder, ranks):
    """Return what each rank kept of a run."""
    return [torch.load(Path(folder) / f"rank_{rank}_of_{ranks}.pt") for rank in range(ranks)]


CLOCK = ("timing", "perf/throughput", "perf/time_per_step", "training/warnings")
SPLIT = ("perf/padding_ratio", "perf/forward_only_rows", "global_seqlen")
VOLATILE = (*CLOCK, *SPLIT)
"""What the clock decides (one of the warnings counted is about throughput), and what the split is meant to change."""


def differences(left, right, scaled=True):
    """Return the largest difference of each metric of two runs; `scaled`: relative where the number is above 1."""
    found = {}
    for a, b in zip(left, right, strict=True):
        a, b = ({k: v for k, v in line.items() if not k.startswith(VOLATILE)} for line in (a, b))
        assert a.keys() == b.keys(), a.keys() ^ b.keys()
        for key, value in a.items():
            found[key] = max(found.get(key, 0.0), abs(value - b[key]) / (max(1.0, abs(value)) if scaled else 1.0))
    return found


def weight_difference(left, right):
    return max(float((value - right[name]).abs().max()) for name, value in left.items())


class Watcher(L.Callback):
    """Keeps what a test compares: the last weights, how many numbers this rank held, and collectives per step."""

    def __init__(self, out, terminated=None):
        self.out, self.calls, self.terminated = out, [], terminated

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.calls.append(dict.fromkeys(COLLECTIVES, 0))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_rank == self.terminated:
            os.kill(os.getpid(), signal.SIGTERM)
            self.terminated = None

    def on_train_end(self, trainer, pl_module):
        rank, size = trainer.global_rank, trainer.world_size
        weights = {name: whole(value).clone() for name, value in pl_module.state_dict().items()}
        own = (value.to_local() if hasattr(value, "to_local") else value for value in pl_module.state_dict().values())
        held = sum(value.numel() for value in own)
        torch.save({"weights": weights, "held": held, "calls": self.calls}, self.out / f"rank_{rank}_of_{size}.pt")


def spoil(model, arguments, output):
    output.data.fill_(float("nan"))


class Strike(L.Callback):
    """Strikes one rank once the actor has taken so many optimizer steps of a training step.

    Args:
        what: `nan`: its losses are not finite from then on; `term`: it gets a SIGTERM.
        rank: the one.
        step: the training step.
        after: optimizer steps.
    """

    def __init__(self, what, rank, step, after):
        self.what, self.rank, self.step, self.after = what, rank, step, after
        self.hooks = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        steps = itertools.count(1)
        here = pl_module.step + 1 == self.step and trainer.global_rank == self.rank

        def taken(*_):
            if here and next(steps) == self.after:
                self.strike(pl_module)

        self.hooks = [pl_module.context.optimizers["actor"].register_step_post_hook(taken)]

    def strike(self, module):
        if self.what == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self.hooks.append(module.actor.model.norm.register_forward_hook(spoil))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for hook in self.hooks:
            hook.remove()


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def counting(watchers):
    """Count what the step under way calls of torch.distributed."""
    for name in COLLECTIVES:
        real = getattr(dist, name)

        def counted(*arguments, _real=real, _name=name, **words):
            if watchers and watchers[-1].calls:
                watchers[-1].calls[-1][_name] += 1
            return _real(*arguments, **words)

        setattr(dist, name, counted)


def do(jobs):
    """Do the runs of a list; each is {overrides, out, resume}."""
    from ppo_lightning.build import quiet
    from ppo_lightning.config.load import load
    from ppo_lightning.config.validate import validate
    from ppo_lightning.parallel.ranks import Ranks
    from ppo_lightning.run import fit
    from ppo_lightning.stages import optimise

    quiet()
    torch.set_num_threads(1)
    if str(FILES) not in sys.path:
        sys.path.append(str(FILES))
    watchers = []
    own_counts = optimise.global_counts
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        counting(watchers)
    for job in jobs:
        loaded = load(None, job["overrides"])
        validate(loaded.config)
        out = Path(job["out"])
        out.mkdir(parents=True, exist_ok=True)
        watchers.append(Watcher(out, job.get("terminated")))
        if job.get("wrong"):  # the naive way: every rank divides by its own counts
            optimise.global_counts = lambda minis, context: own_counts(minis, replace(context, ranks=Ranks()))
        strikes = [Strike(*job["strike"])] if "strike" in job else []
        code = fit(loaded, job.get("resume", "never"), [watchers[-1], *strikes])
        optimise.global_counts = own_counts
        assert code == job.get("code", 0), code


def start(command, rank, size, port, log):
    """Start one rank as torchrun does."""
    environment = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
    }
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Group:
    """Ranks that do a list of runs, from now on; `wait` for them, or leave the block."""

    def __init__(self, jobs, folder, ranks=2):
        file = Path(folder) / f"jobs_{ranks}.json"
        file.write_text(json.dumps(jobs))
        port = free_port()
        self.log = Path(folder) / "log.txt"
        with self.log.open("w") as log:
            self.processes = [
                start([sys.executable, __file__, str(file)], rank, ranks, port, log) for rank in range(ranks)
            ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()

    def wait(self, seconds=280):
        end = time.monotonic() + seconds
        codes = [process.wait(max(end - time.monotonic(), 1)) for process in self.processes]
        assert codes == [0] * len(codes), self.log.read_text()


if __name__ == "__main__":
    try:
        do(json.loads(Path(sys.argv[1]).read_text()))
    except Exception:
        traceback.print_exc()
        raise
