"""Whoever starts the ranks, torchrun or SLURM, on one machine or two: the run is the one that one rank does."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))
import rank_jobs

ROOT = Path(__file__).parents[2]
OPTIONS = ["trainer.steps=2", "checkpoint.every_steps=2"]
NOISE = {"rollout_corr/chi2_seq": 2e-5, "training/rollout_probs_diff_max": 1e-5}  # rounding and nothing else
FAILS = ["actor.policy_loss=rank_losses:breaks"]
BY_OTHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "TORCHELASTIC_RUN_ID")


def slurm_job():
    """Return the number of a job; Lightning makes a port of its last four digits, which is free."""
    for number in range(os.getpid(), os.getpid() + 10000):
        port = 15000 + number % 10000
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return 70000 + port - 15000
    raise AssertionError("no port is free")


def by_slurm(nodes):
    """Return command and variables of each process of a job of two tasks, as srun sets them."""
    each, job = 2 // nodes, slurm_job()
    found = []
    for rank in (0, 1):
        variables = {
            "SLURM_JOB_ID": job,
            "SLURM_JOB_NAME": "train",
            "SLURM_NTASKS": 2,
            "SLURM_STEP_NUM_TASKS": 2,
            "SLURM_NTASKS_PER_NODE": each,
            "SLURM_NNODES": nodes,
            "SLURM_NODELIST": "127.0.0.[1-2]" if nodes > 1 else "127.0.0.1",
            "SLURM_PROCID": rank,
            "SLURM_LOCALID": rank % each,
            "SLURM_NODEID": rank // each,
        }
        found.append((["-m", "ppo_lightning"], {name: str(value) for name, value in variables.items()}))
    return found


def by_torchrun(nodes):
    """Return command and variables of torchrun on each machine, all of them this one."""
    place = ["--standalone"] if nodes == 1 else ["--master-addr=127.0.0.1", f"--master-port={rank_jobs.free_port()}"]
    torchrun = ["-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={2 // nodes}", *place]
    ranks = [[f"--node-rank={node}"] if nodes > 1 else [] for node in range(nodes)]
    return [([*torchrun, *rank, "-m", "ppo_lightning"], {}) for rank in ranks]


WAYS = {"slurm": by_slurm, "torchrun": by_torchrun}
LONG = [pytest.param("torchrun", nodes, marks=pytest.mark.long) for nodes in (1, 2)]


def started(folder, model, way, nodes, *overrides, devices=None):
    """Run `fit` as two ranks; return exit code and standard error of each command, and when it ended."""
    options = rank_jobs.job(folder, model, "run", *overrides, ranks=2)["overrides"]
    options += [f"trainer.devices={devices or 2 // nodes}", f"trainer.nodes={nodes}"]
    environment = {name: value for name, value in os.environ.items() if name not in BY_OTHERS} | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(rank_jobs.FILES)]),
        "RANK_LOSSES_NOTE": str(folder / "note"),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, *command, "fit", *options],
            env=environment | variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, variables in WAYS[way](nodes)
    ]
    try:
        said = [process.communicate(timeout=200)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], said, time.time()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return rank_jobs.save_small_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    """Directory of the same run on one rank."""
    folder = tmp_path_factory.mktemp("alone")
    rank_jobs.do([rank_jobs.job(folder, model, "run", *OPTIONS)])
    return folder / "1" / "run"


def weights(run):
    folder = run / "checkpoints" / "step_000002"
    return load_file(folder / "actor" / "model.safetensors") | load_file(folder / "critic.safetensors")


@pytest.mark.parametrize(("way", "nodes"), [("slurm", 1), ("slurm", 2), *LONG])
def test_the_same_command_gives_the_same_run(alone, model, tmp_path, way, nodes):
    codes, said, _ = started(tmp_path, model, way, nodes, *OPTIONS)
    assert set(codes) == {0}, said
    run = tmp_path / "2" / "run"
    assert [line["step"] for line in rank_jobs.lines(run)] == [1, 2]
    found = rank_jobs.differences(rank_jobs.lines(alone), rank_jobs.lines(run))
    assert {key: value for key, value in found.items() if value > NOISE.get(key, 1e-6)} == {}
    assert rank_jobs.weight_difference(weights(alone), weights(run)) <= 1e-6
    assert any("global_seqlen" in key for line in rank_jobs.lines(run) for key in line)  # there were two ranks


@pytest.mark.parametrize(("way", "nodes"), [("slurm", 2), *LONG])
def test_a_failing_rank_ends_all(model, tmp_path, way, nodes):
    """Every command ends with an error, and the first rank, or torchrun's summary of its own rank, has the reason."""
    codes, said, ended = started(tmp_path, model, way, nodes, *FAILS)
    assert set(codes) == {1}
    assert ended - float((tmp_path / "note").read_text()) < 30
    reason = "ZeroDivisionError: the second rank cannot go on"
    if way == "slurm":
        assert said[0].strip().splitlines()[-1] == reason
        assert reason not in said[1]
    else:
        assert said[-1].rindex(reason) > said[-1].rindex("Root Cause")


@pytest.mark.parametrize(("way", "nodes"), [("slurm", 1), LONG[0]])
def test_another_number_of_processes_is_an_error(model, tmp_path, way, nodes):
    """Two were started, one is asked for: each would train alone."""
    codes, said, _ = started(tmp_path, model, way, nodes, "trainer.strategy=single", devices=1)
    assert not any(code == 0 for code in codes)
    assert all("must be the number of processes that were started, got 2: set them" in text for text in said)
