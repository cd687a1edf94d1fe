"""TensorBoard files in the run directory."""

from typing import Any

from ppo_lightning.errors import ConfigError
from ppo_lightning.loggers.sinks import Metrics, Samples, finite
from ppo_lightning.run_dir import RunDir


class TensorBoardSink:
    """Writes `tensorboard/` of the run directory."""

    name = "TensorBoard"

    def __init__(self, run_dir: RunDir) -> None:
        from lightning.pytorch.loggers import TensorBoardLogger

        try:
            self.logger: Any = TensorBoardLogger(run_dir.path, name="tensorboard", version="")
        except ModuleNotFoundError:
            raise ConfigError(
                "logging.loggers: tensorboard needs its package: pip install 'ppo-lightning[tensorboard]'"
            ) from None

    def __call__(self, step: int, metrics: Metrics, samples: Samples) -> None:
        """Log one step."""
        self.logger.log_metrics(finite(metrics), step)

    def close(self) -> None:
        """Flush and close."""
        self.logger.finalize("success")
