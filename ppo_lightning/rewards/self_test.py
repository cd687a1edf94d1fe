"""The short form of `reward-check` that a run does before it trains."""

from collections.abc import Sequence

from ppo_lightning.errors import RewardError
from ppo_lightning.rewards.check import GOLD_FORMS, Gold, check_gold, scorer_name
from ppo_lightning.rewards.check_text import render, summary
from ppo_lightning.rewards.pool import RewardPool

SELF_TEST_ROWS = 8


def self_test(pool: RewardPool, golds: Sequence[Gold], rows: int = SELF_TEST_ROWS) -> list[str]:
    """Check a few gold answers, spread over the data, before training; return lines to show.

    Raises:
        RewardError: a function cannot be loaded, a sample fails, or a built-in scorer misses a gold answer. How a
            function of your own wants its answers written is not known: there a miss is only said.
    """
    lines = pool.start()
    for source in {gold.data_source for gold in golds}:
        scorer_name(pool.config, source)
    picked = golds[:: max(1, len(golds) // rows)][:rows]
    report = check_gold(pool, picked)
    own = any(scorer_name(pool.config, gold.data_source) not in GOLD_FORMS for gold in picked)
    faulty = [row for row in report.rows if row.scored.fault]
    if faulty or (report.exit_code and not own):
        raise RewardError("the reward fails its self-test on gold answers:\n" + "\n".join(render(report, shown=5)))
    return [*lines, *summary(report)]
