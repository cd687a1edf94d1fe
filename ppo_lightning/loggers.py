"""Weights & Biases and TensorBoard: takers of (step, metrics) that never stop a run."""

import warnings
from typing import Any, cast

from ppo_lightning.config.load import to_yaml
from ppo_lightning.config.schema import Config
from ppo_lightning.errors import ConfigError
from ppo_lightning.run_dir import RunDir

AXIS = "training/global_step"


class WandbSink:
    """One W&B run on the axis training/global_step; continues the run of a checkpoint under the same id."""

    def __init__(self, config: Config, run_dir: RunDir, run_id: str | None) -> None:
        try:
            import wandb
        except ImportError:
            raise ConfigError("logging.wandb needs wandb: pip install 'ppo-lightning[wandb]'") from None
        from omegaconf import OmegaConf

        self.run = wandb.init(
            project=config.logging.project,
            name=config.name,
            id=run_id,
            resume="allow" if run_id else None,
            dir=str(run_dir.path),
            mode=cast(Any, config.logging.wandb),
            config=cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(to_yaml(config)))),
            settings=wandb.Settings(silent=True),
        )
        self.run.define_metric("*", step_metric=AXIS)
        self.run_id: str = self.run.id

    def __call__(self, step: int, metrics: dict[str, float | None]) -> None:
        """Log one step; a failing service is said once and forgotten."""
        try:
            self.run.log({key: value for key, value in metrics.items() if value is not None} | {AXIS: step})
        except Exception as error:  # noqa: BLE001 - whatever W&B raises must not end a run of days
            warnings.warn(f"W&B did not take step {step}: {error}; metrics.jsonl has it", stacklevel=2)

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


class TensorBoardSink:
    """TensorBoard files in the run directory."""

    def __init__(self, run_dir: RunDir) -> None:
        try:
            from lightning.pytorch.loggers import TensorBoardLogger

            self.logger: Any = TensorBoardLogger(run_dir.path, name="tensorboard", version="")
        except ModuleNotFoundError:
            raise ConfigError("logging.tensorboard needs tensorboard: pip install tensorboard") from None

    def __call__(self, step: int, metrics: dict[str, float | None]) -> None:
        """Log one step."""
        self.logger.log_metrics({key: value for key, value in metrics.items() if value is not None}, step)

    def close(self) -> None:
        """Flush and close."""
        self.logger.finalize("success")
