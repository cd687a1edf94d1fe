"""Weights & Biases: every key on one step axis, samples as tables, the recipe as an artifact.

Nothing of the machine is recorded: no command line, environment, git state, requirements or console, for any of them
may hold a secret. A service that cannot be reached never holds a run up.
"""

import contextlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import yaml

from ppo_lightning.config.load import to_yaml
from ppo_lightning.config.schema import Config
from ppo_lightning.errors import ConfigError
from ppo_lightning.loggers.sinks import Metrics, Samples, finite
from ppo_lightning.run_dir import CONFIG, RunDir
from ppo_lightning.secrets import redact

AXIS = "training/global_step"
TABLE_ROWS = 64
"""Rows of a step's table: the first ones, which are whole groups, and in a validation always the same prompts."""

COLUMNS = ("step", "input", "output", "gts", "score", "advantage", "response_length", "finish_reason", "uid")
PROBE_S, INIT_S, FINISH_S = 5.0, 30.0, 60.0
"""Longest waits, in seconds: for any answer, for a run to open, for uploads at the end (WANDB_INIT_TIMEOUT and
WANDB_FINISH_TIMEOUT in the environment come first)."""

PRIVATE: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "save_code": False,
    "disable_git": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


class WandbSink:
    """One W&B run; continues the run of a checkpoint under the same id.

    Args:
        config: of the run.
        run_dir: W&B's files are kept in its folder `wandb`.
        run_id: of the run to continue.
        say: takes a line for the console.

    Raises:
        ConfigError: wandb is not installed, or has no key.
    """

    name = "W&B"

    def __init__(self, config: Config, run_dir: RunDir, run_id: str | None, say: Callable[[str], None]) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        try:
            import wandb
        except ImportError:
            raise ConfigError("logging.wandb needs wandb: pip install 'ppo-lightning[wandb]'") from None
        mode, self.path = config.logging.wandb, run_dir.path
        if mode == "online" and (reason := unreachable(server_address())):
            say(_offline(reason, self.path))
            mode = "offline"
        try:
            self.run = self._open(config, run_id, mode)
        except wandb.errors.UsageError as error:
            raise ConfigError(f"logging.wandb={mode}: {error} Or set WANDB_API_KEY, or logging.wandb=offline") from None
        except Exception as error:
            if mode == "offline":
                raise
            _forget_service()
            say(_offline(_first_line(error), self.path))
            self.run = self._open(config, run_id, "offline")
        self.run_id: str = self.run.id
        self.run.define_metric(AXIS)
        self.run.define_metric("*", step_metric=AXIS)
        self._log_recipe()

    def __call__(self, step: int, metrics: Metrics, samples: Samples) -> None:
        """Log one step in one row: its numbers, and the table of its first rollouts."""
        tables = {f"samples/{split}": self._table(rows) for split, rows in samples.items()}
        self.run.log({**finite(metrics), **tables, AXIS: step})

    def close(self) -> None:
        """Finish the run; a service that has died is forgotten, so that a later run of this process gets a new one."""
        try:
            self.run.finish()
        except Exception:
            _forget_service()
            raise

    def _open(self, config: Config, run_id: str | None, mode: str) -> Any:
        import wandb

        waits = {"init_timeout": "WANDB_INIT_TIMEOUT", "finish_timeout": "WANDB_FINISH_TIMEOUT"}
        bounds: dict[str, Any] = {"init_timeout": INIT_S, "finish_timeout": FINISH_S}
        bounds = {key: float(os.environ.get(variable, bounds[key])) for key, variable in waits.items()}
        return wandb.init(
            project=config.logging.project,
            name=config.name,
            id=run_id,
            resume="allow" if run_id else None,
            dir=str(self.path),
            mode=cast(Any, mode),
            config=yaml.safe_load(redact(to_yaml(config))),
            settings=wandb.Settings(**PRIVATE, **bounds),
        )

    def _log_recipe(self) -> None:
        import wandb

        recipe = wandb.Artifact(f"recipe-{self.run_id}", type="recipe")
        for file in (CONFIG, "recipe.yaml"):
            if (self.path / file).is_file():
                recipe.add_file(str(self.path / file), policy="immutable")
        self.run.log_artifact(recipe)

    def _table(self, rows: list[dict[str, Any]]) -> Any:
        import wandb

        shown = [{**row, "input": _text(row["input"])} for row in rows[:TABLE_ROWS]]
        data = [[_cell(row.get(name)) for name in COLUMNS] for row in shown]
        return wandb.Table(columns=list(COLUMNS), data=data, allow_mixed_types=True)


def server_address() -> str:
    """Return the address of the W&B server, from WANDB_BASE_URL or wandb's own settings."""
    import wandb

    return os.environ.get("WANDB_BASE_URL") or str(wandb.setup().settings.base_url)


def unreachable(address: str, seconds: float = PROBE_S) -> str | None:
    """Return why nothing answers at an address within `seconds`, or None; any HTTP answer will do."""
    try:
        urllib.request.urlopen(address, timeout=seconds).close()
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        return f"{address}: {getattr(error, 'reason', error)}"
    return None


def _offline(reason: str, path: Path) -> str:
    later = f"wandb sync {path}/wandb/offline-run-*"
    return f"warning: W&B cannot be reached ({reason}): this run is kept offline; later: {later}"


def _forget_service() -> None:
    import wandb

    with contextlib.suppress(Exception):  # it says that it cannot be reached, which is known
        wandb.teardown()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _text(messages: Any) -> str:
    if isinstance(messages, str):
        return messages
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)


def _cell(value: Any) -> Any:
    return redact(value) if isinstance(value, str) else value if isinstance(value, int | float | None) else str(value)
