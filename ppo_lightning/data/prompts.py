"""The prompts of a run: read, recognised, rendered with the chat template, tokenised, and cut down to the limit."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import Dataset

from ppo_lightning.config.schema import DataConfig
from ppo_lightning.data import formats, sources
from ppo_lightning.data.chat import render
from ppo_lightning.errors import DataError

SHOWN = 3


@dataclass(frozen=True)
class Prompt:
    """One row of the data set, ready for a rollout. `index` is its place in the source."""

    index: int
    raw_prompt: list[dict[str, str]]
    raw_prompt_ids: list[int]
    data_source: str
    reward_model: dict[str, Any]
    extra_info: dict[str, Any]


@dataclass
class PromptSet(Dataset[Prompt]):
    """The usable prompts of one source, with what was left out and why."""

    name: str
    format: str
    prompts: list[Prompt]
    too_long: int = 0
    skipped: list[tuple[int, str]] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of prompts."""
        return len(self.prompts)

    def __getitem__(self, position: int) -> Prompt:
        """Return the prompt at a position of the filtered set."""
        return self.prompts[position]


def load_prompts(
    spec: str, key: str, config: DataConfig, tokenizer: Any, say: Callable[[str], None] = lambda text: None
) -> PromptSet:
    """Load the prompts that `data.train` or `data.val` names.

    Raises:
        DataError: unreadable source, a bad row (with its number) under data.bad_rows=error, a prompt over
            data.max_prompt_tokens under data.long_prompts=error, or nothing left.
    """
    source = sources.read(spec, key, say)
    limit = config.max_train_rows if key == "data.train" else config.max_val_rows
    rows = source.rows[:limit]
    if not rows:
        first = f"; {len(source.broken)} could not be read, row %s: %s" % source.broken[0] if source.broken else ""
        raise DataError(f"{key}={spec}: no rows{first}")
    kind = formats.detect_rows(rows, config, source.name)
    result = PromptSet(source.name, kind.said, [], skipped=list(source.broken))
    for number, row in rows:
        _add(result, number, row, kind, config, tokenizer)
    _judge(result, key, config)
    say(_summary(result, key))
    return result


def _add(result: PromptSet, number: int, row: dict, kind: formats.Format, config: DataConfig, tokenizer: Any) -> None:
    try:
        example = formats.read_row(row, kind, config, result.name)
        ids = render(tokenizer, example.chat)
    except DataError as error:
        result.skipped.append((number, str(error)))
        return
    if len(ids) > config.max_prompt_tokens:
        result.too_long += 1
        if config.long_prompts == "error":
            raise DataError(
                f"{result.name} row {number}: the prompt has {len(ids)} tokens, data.max_prompt_tokens="
                f"{config.max_prompt_tokens}: raise the limit, or set data.long_prompts=filter"
            )
        return
    reward_model = {"style": example.style, "ground_truth": example.ground_truth}
    extra = {"index": number, **example.extra_info}
    result.prompts.append(Prompt(number, example.chat, ids, example.data_source, reward_model, extra))


def _judge(result: PromptSet, key: str, config: DataConfig) -> None:
    if result.skipped and config.bad_rows == "error":
        shown = "\n".join(f"  row {number}: {reason}" for number, reason in result.skipped[:SHOWN])
        more = f"\n  and {len(result.skipped) - SHOWN} more" if len(result.skipped) > SHOWN else ""
        raise DataError(
            f"{key}={result.name}: {len(result.skipped)} bad rows (data.bad_rows=skip leaves them out):\n{shown}{more}"
        )
    if not result.prompts:
        raise DataError(
            f"{key}={result.name}: no prompt left: {result.too_long} over data.max_prompt_tokens="
            f"{config.max_prompt_tokens}, {len(result.skipped)} bad rows"
        )


def _summary(result: PromptSet, key: str) -> str:
    left_out = []
    repeated = len(result) - len({tuple(prompt.raw_prompt_ids) for prompt in result.prompts})
    if result.too_long:
        left_out.append(f"{result.too_long} over the prompt limit")
    if result.skipped:
        left_out.append(f"{len(result.skipped)} bad rows (first: row {result.skipped[0][0]}: {result.skipped[0][1]})")
    tail = f", left out: {'; '.join(left_out)}" if left_out else ""
    twice = f", {repeated} of them again (kept: each draw is a group of its own)" if repeated else ""
    return f"{key}: {len(result)} prompts from {result.name} ({result.format}){twice}{tail}"
