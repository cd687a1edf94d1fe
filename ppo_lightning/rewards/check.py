"""Try a reward before it trains anything: over gold answers, which must score full marks, and over given responses."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import DataError
from ppo_lightning.rewards.combine import Part
from ppo_lightning.rewards.pool import RewardPool
from ppo_lightning.rewards.routes import has_reward_model
from ppo_lightning.rewards.sample import Sample, Scored
from ppo_lightning.rewards.scorers import scorer_of_source

FULL_MARKS = 1.0
RESPONSE_KEYS = ("response", "solution_str", "completion", "output")
TRUTH_KEYS = ("ground_truth", "gts", "answer")
PROMPT_KEYS = ("prompt", "input")
COMPARABLE = ("naive", "batch", "dapo")
"""Managers whose rows add up to the sample's score, so that a recorded one can be compared."""
GOLD_FORMS = {
    "gsm8k": "#### {}",
    "gsm8k_strict": "#### {}",
    "gsm8k_flexible": "#### {}",
    "gsm8k_format": "#### {}",
    "numeric": "{}",
    "exact": "{}",
    "choice": "{}",
    "math": "\\boxed{{{}}}",
    "reasoning_gym": "<answer>{}</answer>",
}
"""scorer -> how a response that holds nothing but the right answer is written."""


@dataclass(frozen=True)
class Gold:
    """One row of the data: what is asked, and the answer that must score full marks.

    Attributes:
        data_source: as in the data.
        ground_truth: as in the data.
        extra_info: as in the data; a full solution under `answer` or `solution` is tried as the response.
        prompt: text or chat.
    """

    data_source: str
    ground_truth: Any
    extra_info: dict[str, Any] = field(default_factory=dict)
    prompt: Any = None


@dataclass(frozen=True)
class Checked:
    """One response with its outcome.

    Attributes:
        sample: what was scored.
        scored: the outcome.
        mark: the first part's score, which is what full marks are asked of; None for a fault.
        recorded: the score that a run had written down for it, if any.
    """

    sample: Sample
    scored: Scored
    mark: float | None
    recorded: float | None = None

    @property
    def differs(self) -> bool:
        """Whether the recorded score is not the one scored now."""
        now = self.scored.score
        return self.recorded is not None and (now is None or abs(self.recorded - now) > 1e-6 * max(1.0, abs(now)))


@dataclass(frozen=True)
class Report:
    """The outcome of a check.

    Attributes:
        rows: every response with its outcome.
        is_gold: whether full marks were asked for.
        part_names: the parts, in order.
    """

    rows: list[Checked]
    is_gold: bool
    part_names: list[str]

    @property
    def full(self) -> int:
        """How many rows have full marks."""
        return sum(row.mark is not None and row.mark >= FULL_MARKS for row in self.rows)

    def amiss(self, row: Checked) -> bool:
        """Return whether a row needs attention: it failed, differs from its record, or is gold without full marks."""
        short = self.is_gold and (row.mark is None or row.mark < FULL_MARKS)
        return short or row.differs or row.scored.fault is not None

    @property
    def exit_code(self) -> int:
        """1 when any row needs attention, else 0."""
        return int(any(map(self.amiss, self.rows)))


def gold_sample(row: int, gold: Gold, scorer: str | None) -> Sample:
    """Return the response that must score full marks: the full solution if the data has one, else the bare answer.

    Args:
        row: its number.
        gold: the data row.
        scorer: name of the built-in scorer; None for a function of the user's own.
    """
    written = (gold.extra_info.get(key) for key in ("answer", "solution"))
    whole = (text for text in written if isinstance(text, str) and text.strip() != str(gold.ground_truth).strip())
    solution = next(whole, None)
    bare = GOLD_FORMS.get(scorer or "", "{}").format(gold.ground_truth)
    text = solution if solution is not None and scorer in ("gsm8k", "math", None) else bare
    return Sample(row, gold.data_source, text, gold.ground_truth, gold.extra_info, gold.prompt)


def check_gold(pool: RewardPool, golds: Iterable[Gold]) -> Report:
    """Score gold answers.

    Raises:
        RewardError: no built-in scorer belongs to a data source, or a function cannot be loaded.
    """
    samples = [gold_sample(row, gold, scorer_name(pool.config, gold.data_source)) for row, gold in enumerate(golds)]
    return _report(pool, samples, [None] * len(samples), is_gold=True)


def check_responses(
    pool: RewardPool, samples: Sequence[Sample], recorded: Sequence[float | None] | None = None
) -> Report:
    """Score given responses; where a run recorded a score, it must be the same (where the manager lets it be seen)."""
    rules_only = pool.config.manager in COMPARABLE and not has_reward_model(pool.config)
    comparable = recorded if recorded is not None and rules_only else [None] * len(samples)
    return _report(pool, samples, comparable, is_gold=False)


def scorer_name(config: RewardConfig, data_source: str) -> str | None:
    """Return the built-in scorer of a data source under a configuration; None for a function of the user's own."""
    if config.path is not None or ":" in config.scorer:
        return None
    return scorer_of_source(data_source) if config.scorer == "auto" else config.scorer


def _report(pool: RewardPool, samples: Sequence[Sample], recorded: Sequence[float | None], is_gold: bool) -> Report:
    outcomes = {scored.row: scored for scored in pool.score(samples)}
    rows = [
        Checked(sample, outcomes[sample.row], _mark(outcomes[sample.row], pool.parts), score)
        for sample, score in zip(samples, recorded, strict=True)
    ]
    return Report(rows, is_gold, [part.name for part in pool.parts])


def _mark(scored: Scored, parts: Sequence[Part]) -> float | None:
    if scored.fault is not None:
        return None
    return float(scored.extra[parts[0].name]) if len(parts) > 1 else scored.score


def read_responses(path: Path, data_source: str | None = None) -> tuple[list[Sample], list[float | None]]:
    """Read a JSONL file of responses, the rollouts of a run directory, or all files of a folder.

    A line needs a response (`response`, `solution_str`, `completion` or `output`); `ground_truth` (or `gts`),
    `data_source`, `extra_info`, `prompt` (or `input`) and a recorded `score` are optional. So rollouts of a run, and
    dumps of verl, are read as they are.

    Returns:
        The samples, and the score that was recorded for each: None where there is none or the sample had failed.

    Raises:
        DataError: no file, a line that is no JSON object, or one without what is needed; it names file and line.
    """
    folder = path / "rollouts" if (path / "rollouts").is_dir() else path
    files = sorted(folder.glob("**/*.jsonl")) if folder.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise DataError(f"reward-check needs a JSONL file of responses, or a folder with some - got {path}")
    samples: list[Sample] = []
    recorded: list[float | None] = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
            if line.strip():
                entry = _entry(line, f"{file}:{number}")
                samples.append(_sample(len(samples), entry, f"{file}:{number}", data_source))
                recorded.append(_recorded(entry))
    return samples, recorded


def _recorded(entry: dict[str, Any]) -> float | None:
    """Return the score as the reward gave it: not one that stands for a fault, and without the overlong penalty."""
    score = entry.get("score")
    if not isinstance(score, int | float) or entry.get("reward_fault") is not None:
        return None
    return float(score) - float(entry.get("overlong_reward") or 0.0)


def _entry(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where} must be a JSON object: {error}") from error
    if not isinstance(entry, dict):
        raise DataError(f"{where} must be a JSON object - got {type(entry).__name__}")
    return entry


def _sample(row: int, entry: dict[str, Any], where: str, data_source: str | None) -> Sample:
    response = next((entry[key] for key in RESPONSE_KEYS if isinstance(entry.get(key), str)), None)
    nested = entry.get("reward_model")
    known = (nested if isinstance(nested, dict) else {}) | entry
    truth = next((known[key] for key in TRUTH_KEYS if key in known), None)
    source = data_source or entry.get("data_source")
    if response is None or source is None:
        missing = (
            f"a response ({', '.join(RESPONSE_KEYS)})" if response is None else "data_source (or set data.data_source)"
        )
        raise DataError(f"{where} needs {missing} - it has {', '.join(sorted(entry))}")
    prompt = next((entry[key] for key in PROMPT_KEYS if key in entry), None)
    return Sample(row, str(source), response, truth, entry.get("extra_info"), prompt)
