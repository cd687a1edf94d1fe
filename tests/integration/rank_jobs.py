"""Runs on several ranks: `python rank_jobs.py FILE` does a list of runs one after the other, as one rank of a group.

One process per rank does all runs of a test file: starting one costs more than a run.
"""

import json
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import lightning as L
import torch
import torch.distributed as dist

COLLECTIVES = (
    "all_reduce",
    "all_gather_into_tensor",
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "broadcast",
    "barrier",
)


class Watcher(L.Callback):
    """Keeps what a test compares: weights, losses per step, collectives per step, rows per mini-batch."""

    def __init__(self, out):
        self.out, self.calls, self.sizes = out, [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.calls.append(dict.fromkeys(COLLECTIVES, 0))

    def on_train_end(self, trainer, pl_module):
        rank, size = trainer.global_rank, trainer.world_size
        weights = {name: whole(value).clone() for name, value in pl_module.state_dict().items()}
        torch.save({"weights": weights, "calls": self.calls}, self.out / f"rank_{rank}_of_{size}.pt")


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
    from ppo_lightning.build import fit, quiet
    from ppo_lightning.config.load import load
    from ppo_lightning.config.validate import validate

    quiet()
    torch.set_num_threads(1)
    watchers = []
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        counting(watchers)
    for job in jobs:
        loaded = load(None, job["overrides"])
        validate(loaded.config)
        out = Path(job["out"])
        out.mkdir(parents=True, exist_ok=True)
        watchers.append(Watcher(out))
        code = fit(loaded, job.get("resume", "never"), [watchers[-1]])
        assert code == 0, code


def start(command, rank, size, port):
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
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def together(jobs, folder, ranks=2, seconds=280):
    """Do the runs on a group of ranks; fails with their output."""
    file = Path(folder) / f"jobs_{ranks}.json"
    file.write_text(json.dumps(jobs))
    port = free_port()
    processes = [start([sys.executable, __file__, str(file)], rank, ranks, port) for rank in range(ranks)]
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=seconds)[0])
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(outputs)


if __name__ == "__main__":
    try:
        do(json.loads(Path(sys.argv[1]).read_text()))
    except Exception:
        traceback.print_exc()
        raise
