"""What `reward-check` does: the recipe's own reward on gold answers or on given responses, nothing else loaded."""

from collections.abc import Callable
from pathlib import Path

from ppo_lightning.config.schema import Config, RewardConfig
from ppo_lightning.errors import DataError, RewardError
from ppo_lightning.rewards.check import Gold, Report, check_gold, check_responses, read_responses
from ppo_lightning.rewards.check_text import render
from ppo_lightning.rewards.golds import read_golds
from ppo_lightning.rewards.pool import RewardPool
from ppo_lightning.rewards.routes import has_rule

Say = Callable[[str], None]


def try_gold(config: Config, say: Say) -> int:
    """Score every gold answer of data.train and data.val; return 1 unless all score full marks.

    Raises:
        DataError: the data cannot be read, or names no right answers.
        RewardError: a function cannot be loaded, or only a reward model scores.
    """
    specs = {"data.train": config.data.train, "data.val": config.data.val}
    golds: list[Gold] = []
    for key, spec in specs.items():
        if spec is not None:
            golds += read_golds(spec, key, config.data, say)
    if not golds:
        raise DataError("reward-check needs gold answers, and no row names one: give it a file of responses")
    with _pool(config.reward, say) as pool:
        return _shown(check_gold(pool, golds), say)


def try_responses(path: str, config: Config, say: Say) -> int:
    """Score recorded responses; return 1 if any fails or scores otherwise than recorded.

    Raises:
        DataError: the file cannot be read.
        RewardError: a function cannot be loaded, or only a reward model scores.
    """
    samples, recorded = read_responses(Path(path), config.data.data_source)
    with _pool(config.reward, say) as pool:
        return _shown(check_responses(pool, samples, recorded), say)


def _pool(config: RewardConfig, say: Say) -> RewardPool:
    if not has_rule(config):
        raise RewardError(
            "reward-check tries rules, and here a reward model alone scores (reward.model_path, reward.model_server): "
            "set reward.scorer or reward.path"
        )
    pool = RewardPool(config)
    try:
        for line in pool.start():
            say(f"reward: {line}")
    except RewardError:
        pool.close()
        raise
    return pool


def _shown(report: Report, say: Say) -> int:
    for line in render(report):
        say(line)
    return report.exit_code
