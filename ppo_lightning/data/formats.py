"""Turn a raw row of a known format into a prompt: verl's schema, TRL's columns, or plain question and answer."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ppo_lightning.config.schema import DataConfig
from ppo_lightning.errors import DataError

Chat = list[dict[str, str]]
ANSWERS = ("ground_truth", "answer", "solution", "label", "target")
ROLES = ("system", "user", "assistant", "tool", "developer")
KNOWN_SOURCES = {"gsm8k": "openai/gsm8k"}


@dataclass(frozen=True)
class Format:
    """A recognised row format: its name as said to the user, and the function that reads a row."""

    name: str
    said: str


@dataclass(frozen=True)
class Example:
    """One problem before tokenising; `chat` is checked by `read_row`."""

    chat: Any
    ground_truth: Any
    data_source: str
    extra_info: dict[str, Any]
    style: str = "rule"


VERL = Format("verl", "verl's schema (prompt, data_source, reward_model.ground_truth, extra_info)")
TRL = Format("trl", "TRL's columns (prompt and others)")
QA = Format("qa", "question and answer")


def detect_rows(rows: Sequence[tuple[int, dict[str, Any]]], config: DataConfig, source: str) -> Format:
    """Tell the format from the first row that has one: a bad row is judged as a row, not as the file.

    Raises:
        DataError: none has; of the first row.
    """
    for _, row in rows:
        try:
            return detect(row, config, source)
        except DataError:
            continue
    return detect(rows[0][1], config, source)


def detect(columns: Iterable[str], config: DataConfig, source: str) -> Format:
    """Tell the format from the column names.

    Raises:
        DataError: neither of the three, with what was found and what each needs.
    """
    found = set(columns)
    if {"prompt", "reward_model"} <= found:
        return VERL
    if "prompt" in found:
        return TRL
    if {config.question_key, config.answer_key} <= found:
        return QA
    raise DataError(
        f"{source}: no known format among the columns {', '.join(sorted(found))}. Needed: `prompt` and `reward_model` "
        f"(verl), `prompt` (TRL), or `{config.question_key}` and `{config.answer_key}` (set data.question_key and "
        "data.answer_key)"
    )


def read_row(row: dict[str, Any], kind: Format, config: DataConfig, source: str) -> Example:
    """Read one row.

    Raises:
        DataError: with the reason; the caller adds the row number.
    """
    if kind is VERL:
        example = _verl(row, source)
    elif kind is TRL:
        example = _trl(row, source)
    else:
        example = _question_answer(row, config, source)
    chat = _suffixed(_checked(example.chat), config)
    if config.system_prompt is not None and chat[0]["role"] != "system":
        chat = [{"role": "system", "content": config.system_prompt}, *chat]
    data_source = config.data_source or example.data_source
    if not isinstance(data_source, str):
        raise DataError(f"data_source must be text, got {data_source!r}")
    return Example(chat, _extracted(example.ground_truth, config), data_source, example.extra_info, example.style)


def _verl(row: dict[str, Any], source: str) -> Example:
    rewards = row.get("reward_model")
    if not isinstance(rewards, dict) or "ground_truth" not in rewards:
        raise DataError("reward_model must hold ground_truth")
    extra = row.get("extra_info") or {}
    if not isinstance(extra, dict):
        raise DataError(f"extra_info must be an object, got {type(extra).__name__}")
    return Example(
        row.get("prompt"),
        rewards["ground_truth"],
        row.get("data_source") or source,
        dict(extra),
        rewards.get("style", "rule"),
    )


def _trl(row: dict[str, Any], source: str) -> Example:
    prompt = row.get("prompt")
    chat: Any = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    truth = next((row[name] for name in ANSWERS if row.get(name) is not None), None)
    extra = {name: value for name, value in row.items() if name not in ("prompt", "data_source")}
    return Example(chat, truth, row.get("data_source") or source, extra)


def _question_answer(row: dict[str, Any], config: DataConfig, source: str) -> Example:
    question, answer = row.get(config.question_key), row.get(config.answer_key)
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"`{config.question_key}` must be text that is not empty, got {question!r}")
    if answer is None:
        raise DataError(f"`{config.answer_key}` is missing")
    used = (config.question_key, config.answer_key, "data_source")
    extra = {"question": question, "answer": answer} | {k: v for k, v in row.items() if k not in used}
    return Example(
        [{"role": "user", "content": question}], answer, row.get("data_source") or _known(source, answer), extra
    )


def _known(source: str, answer: Any) -> str:
    """Recognise GSM8K by its name or its `####` answers, so that files of it get its scorer."""
    if "gsm8k" in source.lower() or (isinstance(answer, str) and re.search(r"\n#### \S+\s*$", answer)):
        return KNOWN_SOURCES["gsm8k"]
    return source.partition(":")[0].partition("@")[0]


def _extracted(truth: Any, config: DataConfig) -> Any:
    if not isinstance(truth, str):
        return truth
    if config.answer_pattern is None:
        return truth.rpartition("####")[2].strip().replace(",", "") if "\n#### " in truth else truth
    found = re.findall(config.answer_pattern, truth)
    if not found:
        raise DataError(f"data.answer_pattern={config.answer_pattern!r} matches nothing in the answer {truth[-80:]!r}")
    return (found[-1][0] if isinstance(found[-1], tuple) else found[-1]).strip()


def _checked(chat: Any) -> Chat:
    if not isinstance(chat, list) or not chat:
        raise DataError(f"prompt must be text or a list of messages that is not empty, got {type(chat).__name__}")
    for message in chat:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise DataError(f"each message must hold role and content as text, got {message!r}")
        if message.get("role") not in ROLES:
            raise DataError(f"a message's role must be one of {', '.join(ROLES)}; got {message.get('role')!r}")
        if "\x00" in message["content"]:
            raise DataError("a message holds a NUL character")
    if not any(message["content"].strip() for message in chat):
        raise DataError("the prompt is empty")
    return [{"role": m["role"], "content": m["content"]} for m in chat]


def _suffixed(chat: Chat, config: DataConfig) -> Chat:
    if config.prompt_suffix and chat[-1]["role"] == "user":
        return [*chat[:-1], {"role": "user", "content": chat[-1]["content"] + config.prompt_suffix}]
    return chat
