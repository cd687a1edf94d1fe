"""Processes that torchrun or SLURM has started are counted before anything is loaded."""

import signal

import lightning as L
import pytest

from ppo_lightning.config.schema import TrainerConfig
from ppo_lightning.errors import ConfigError
from ppo_lightning.parallel.started import environments

TWO_TASKS = {"SLURM_JOB_ID": "71234", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}
RANK = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "any", "WORLD_SIZE": "4", "RANK": "0", "LOCAL_RANK": "0"}
ONE, TWO = TrainerConfig(), TrainerConfig(strategy="ddp", devices=2)


@pytest.fixture
def given(monkeypatch):
    """Return a function that sets variables, with none of a launcher's left from outside."""
    for name in (*TWO_TASKS, *RANK, *TORCHRUN, "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    return lambda variables: [monkeypatch.setenv(name, value) for name, value in variables.items()]


def test_nobody_else_started_ranks(given):
    assert environments(ONE) == []
    assert environments(TWO) == []  # the first rank starts the second


def test_torchrun(given):
    given(TORCHRUN)
    with pytest.raises(ConfigError, match=r"trainer.devices=2 x trainer.nodes=1 must be .* got 4: set them"):
        environments(TWO)
    assert environments(TrainerConfig(strategy="ddp", devices=2, nodes=2)) == []


def test_srun(given):
    given(TWO_TASKS | {"SLURM_STEP_NUM_TASKS": "2"})
    with pytest.raises(ConfigError, match=r"trainer.devices=1 x trainer.nodes=1 must be .* got 2"):
        environments(ONE)
    with pytest.raises(ConfigError, match=r"trainer.devices=4 .* got 2"):
        environments(TrainerConfig(strategy="ddp", devices=4))
    (found,) = environments(TWO)
    assert found.world_size() == 2


def test_a_batch_script_without_srun_is_one_process(given):
    given(TWO_TASKS)
    assert len(environments(ONE)) == 1


def test_torchrun_within_a_job_of_slurm(given):
    given(TWO_TASKS | TORCHRUN)
    assert environments(TrainerConfig(strategy="ddp", devices=4)) == []


def test_what_lightning_asks_for_is_told(given):
    given({name: value for name, value in TWO_TASKS.items() if name != "SLURM_NTASKS_PER_NODE"})
    with pytest.raises(ConfigError, match=r"trainer.devices=2 under SLURM: .*--ntasks-per-node=2"):
        environments(TWO)


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "Lightning's own"])
def test_nobody_but_slurm_requeues(given, ours):
    """Lightning's own handler of SIGUSR1 (negative control) saves another checkpoint, which the next run takes up."""
    given(TWO_TASKS | RANK | {"SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "1"})
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    plugins = {"plugins": environments(ONE)} if ours else {}
    trainer = L.Trainer(devices=1, **options, **plugins)
    before = signal.getsignal(signal.SIGUSR1)
    trainer._signal_connector.register_signal_handlers()
    try:
        assert (signal.getsignal(signal.SIGUSR1) == before) == ours
    finally:
        trainer._signal_connector.teardown()
