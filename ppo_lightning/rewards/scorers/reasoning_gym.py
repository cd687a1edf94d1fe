"""Answers to generated problems of reasoning-gym; the data source is `reasoning_gym/<task>`.

A numeric ground truth is compared as a number, like GSM8K: reasoning-gym's own rule gives part of the score to any text
that contains the digits, which a policy learns to exploit. Everything else is scored by the task's own rule.
"""

import re
from functools import lru_cache
from typing import Any

from ppo_lightning.rewards.scorers.gsm8k import extract, shown
from ppo_lightning.rewards.scorers.match import outcome
from ppo_lightning.rewards.scorers.numbers import first_number, read_number

ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def reasoning_gym(
    solution_str: str,
    ground_truth: Any,
    data_source: str,
    extra_info: dict[str, Any] | None = None,
    own_rule: bool = False,
) -> dict[str, Any]:
    """Score an answer between 0 and 1.

    Args:
        solution_str: the response; what the last `<answer>` tag holds counts, else the whole response.
        ground_truth: the generated answer.
        data_source: `reasoning_gym/<task>`.
        extra_info: the entry's `metadata` (or the metadata itself), which some tasks' own rules need.
        own_rule: use reasoning-gym's rule for numbers too.
    """
    tagged = ANSWER_TAG.findall(solution_str)
    gold = read_number(str(ground_truth))
    if gold is not None and not own_rule:
        number = first_number(tagged[-1]) if tagged else extract(solution_str)
        return outcome(number == gold, None if number is None else shown(number))
    answer = (tagged[-1] if tagged else solution_str).strip()
    known = extra_info or {}
    entry = {**known, "answer": str(ground_truth), "metadata": known.get("metadata", known)}
    score = float(own_scorer(data_source.split("/", 1)[-1])(answer, entry))
    return {"score": score, "acc": float(score == 1.0), "pred": answer}


@lru_cache(maxsize=64)
def own_scorer(task: str) -> Any:
    """Return the task's own rule, `(answer, entry) -> float`.

    Raises:
        ImportError: reasoning-gym is not installed.
    """
    try:
        from reasoning_gym.factory import get_score_answer_fn
    except ImportError as error:
        raise ImportError("this scorer needs reasoning-gym: pip install 'ppo-lightning[offline]'") from error
    return get_score_answer_fn(task)
