"""The same on GPUs: NCCL, one process per device. `pytest tests/gpu -m gpu` on a machine with two of them."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
import rank_jobs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
OPTIONS = ["trainer.accelerator=gpu", "trainer.steps=4", "actor.use_kl_loss=true", "checkpoint.every_steps=4"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    model = rank_jobs.save_small_model(tmp_path_factory.mktemp("small"))
    rank_jobs.do([rank_jobs.job(folder, model, "single", *OPTIONS)])
    jobs = [rank_jobs.job(folder, model, name, *OPTIONS, ranks=2, strategy=name) for name in ("ddp", "fsdp")]
    rank_jobs.together(jobs, folder)
    return folder


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_two_devices_equal_one(runs, name):
    """Looser than on a CPU: a GPU adds up in another order for another number of rows."""
    found = rank_jobs.differences(rank_jobs.lines(runs / "1" / "single"), rank_jobs.lines(runs / "2" / name))
    assert found["actor/pg_loss"] <= 1e-4
    assert found["actor/grad_norm"] <= 1e-3
    first, second = rank_jobs.kept(runs / "2" / name, 2)
    assert all(torch.equal(value, second["weights"][key]) for key, value in first["weights"].items())
