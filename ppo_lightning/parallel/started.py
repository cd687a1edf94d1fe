"""Ranks that torchrun or SLURM has started: as many as the configuration asks for, and requeued by nobody but SLURM."""

import os
from typing import Any

from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

from ppo_lightning.config.schema import TrainerConfig
from ppo_lightning.errors import ConfigError


def environments(config: TrainerConfig) -> list[Any]:
    """Return what `L.Trainer(plugins=...)` takes where processes are there already, after counting them.

    Under SLURM Lightning answers SIGUSR1 with a checkpoint of its own, which the next run in the same directory would
    take up in place of ours: that is turned off.

    Raises:
        ConfigError: others were started than the configuration asks for; they would wait for ever, or train apart.
    """
    wanted = config.devices * config.nodes
    if TorchElasticEnvironment.detect():
        _compare(int(os.environ["WORLD_SIZE"]), wanted, config, "torchrun --nnodes and --nproc-per-node")
        return []
    if not SLURMEnvironment.detect():
        return []
    # A batch script without srun is one process, whatever the job has been given.
    counted = "SLURM_NTASKS" if wanted > 1 else "SLURM_STEP_NUM_TASKS"
    _compare(int(os.environ.get(counted, "1")), wanted, config, "srun --nodes and --ntasks-per-node")
    try:
        return [SLURMEnvironment(auto_requeue=False)]
    except RuntimeError as error:  # --ntasks without --ntasks-per-node
        raise ConfigError(f"trainer.devices={config.devices} under SLURM: {error}") from None


def _compare(found: int, wanted: int, config: TrainerConfig, options: str) -> None:
    if found != wanted:
        raise ConfigError(
            f"trainer.devices={config.devices} x trainer.nodes={config.nodes} must be the number of processes that "
            f"were started, got {found}: set them (and trainer.strategy=ddp or fsdp for more than one) as in {options}"
        )
