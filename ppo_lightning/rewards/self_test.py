"""The short form of `reward-check` that a run does before it trains."""

from collections.abc import Iterable, Iterator, Sequence

from ppo_lightning.data.prompts import Prompt
from ppo_lightning.errors import RewardError
from ppo_lightning.rewards.check import GOLD_FORMS, Gold, Report, check_gold, scorer_name
from ppo_lightning.rewards.check_text import render, summary
from ppo_lightning.rewards.golds import UNKNOWN
from ppo_lightning.rewards.policy import settle
from ppo_lightning.rewards.pool import RewardPool

SELF_TEST_ROWS = 8


def golds_of(prompts: Iterable[Prompt]) -> Iterator[Gold]:
    """Yield the gold answers of loaded prompts."""
    for prompt in prompts:
        truth = prompt.reward_model["ground_truth"]
        if truth not in UNKNOWN:
            yield Gold(prompt.data_source, truth, prompt.extra_info, prompt.raw_prompt)


def self_test(pool: RewardPool, golds: Sequence[Gold], rows: int = SELF_TEST_ROWS) -> list[str]:
    """Check a few gold answers, spread over the data, before training; return lines to show.

    Raises:
        RewardError: a function cannot be loaded, more samples fail than the policy allows, or a built-in scorer misses
            a gold answer. How a function of your own wants its answers written is not known: there a miss is only said.
    """
    lines = pool.start()
    for source in {gold.data_source for gold in golds}:
        scorer_name(pool.config, source)
    picked = golds[:: max(1, len(golds) // rows)][:rows]
    if not picked:
        return [*lines, "no row names a right answer: the reward was not tried"]
    report = check_gold(pool, picked)
    own = any(scorer_name(pool.config, gold.data_source) not in GOLD_FORMS for gold in picked)
    short = report.full + sum(row.scored.fault is not None for row in report.rows) < len(report.rows)
    try:
        settle([row.scored for row in report.rows], pool.config)
    except RewardError as error:
        raise RewardError(_text(report)) from error
    if short and not own:
        raise RewardError(_text(report))
    return [*lines, *(line for line in summary(report) if line.startswith(("gold", "faults: ")) and "none" not in line)]


def _text(report: Report) -> str:
    return "the reward fails its self-test on gold answers:\n" + "\n".join(render(report, shown=5))
