r"""Mathematical answers, compared by meaning with math-verify: the last `\boxed{}` of the response counts.

math-verify's own time limits use SIGALRM and raise off a main thread; a blanket `except` around them turns that into 0
for every sample. They are switched off: the pool's limit ends an answer that hangs.
"""

from functools import lru_cache
from typing import Any

from ppo_lightning.rewards.scorers.match import outcome
from ppo_lightning.rewards.scorers.numbers import last_boxed

try:
    from math_verify import parse, verify
except ImportError as error:
    raise ImportError("scorer `math` needs math-verify: pip install 'ppo-lightning[math]'") from error


def math(solution_str: str, ground_truth: Any) -> dict[str, Any]:
    r"""Score 1.0 when the response's answer means the same as the ground truth.

    Args:
        solution_str: the response; without a `\boxed{}` math-verify looks for the last expression in it.
        ground_truth: LaTeX or plain text, or a solution whose last `\boxed{}` holds it.

    Raises:
        ValueError: the ground truth cannot be read.
    """
    gold_text = last_boxed(str(ground_truth))
    gold_text = str(ground_truth) if gold_text is None else gold_text
    answer_text = last_boxed(solution_str)
    if answer_text is not None and answer_text.strip() == gold_text.strip():
        return outcome(True, answer_text)
    gold = read_gold(gold_text)
    answer = _parse(solution_str if answer_text is None else f"\\boxed{{{answer_text}}}")
    right = bool(answer) and bool(verify(gold, answer, timeout_seconds=None))
    shown = answer_text if answer_text is not None else str(answer[-1])[:200] if answer else None
    return outcome(right, shown)


@lru_cache(maxsize=4096)
def read_gold(text: str) -> list[Any]:
    """Return the parsed ground truth; parsed once for all responses to a prompt."""
    gold = _parse(f"\\boxed{{{text}}}") or _parse(text)
    if not gold:
        raise ValueError(f"the ground truth must be a mathematical expression - got {text[:200]!r}")
    return gold


def _parse(text: str) -> list[Any]:
    return list(parse(text, parsing_timeout=None))
