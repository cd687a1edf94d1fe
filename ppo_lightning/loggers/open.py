"""Which loggers a configuration opens."""

from collections.abc import Callable

from ppo_lightning.config.schema import Config
from ppo_lightning.errors import ConfigError
from ppo_lightning.loggers.sinks import Sink
from ppo_lightning.run_dir import RunDir


def open_sinks(
    config: Config, run_dir: RunDir, wandb_id: str | None, say: Callable[[str], None]
) -> tuple[list[Sink], str | None]:
    """Open the loggers of `logging.wandb` and `logging.loggers`; returns them and the id of the W&B run.

    Raises:
        ConfigError: a logger is not known or its package is missing.
    """
    sinks: list[Sink] = []
    if config.logging.wandb != "off":
        from ppo_lightning.loggers.wandb import WandbSink

        try:
            wandb = WandbSink(config, run_dir, wandb_id, say)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever W&B's process raises, the run can do without it
            say(f"warning: W&B cannot be started ({error}): this run goes on without it; metrics.jsonl has everything")
        else:
            wandb_id = wandb.run_id
            sinks.append(wandb)
    for name in config.logging.loggers:
        if name == "tensorboard":
            from ppo_lightning.loggers.tensorboard import TensorBoardSink

            sinks.append(TensorBoardSink(run_dir))
        elif name == "csv":
            from ppo_lightning.loggers.csv import CsvSink

            sinks.append(CsvSink(run_dir))
        else:
            raise ConfigError(f"logging.loggers may hold tensorboard and csv - got {name!r} - W&B is logging.wandb")
    return sinks, wandb_id
