"""Read raw rows from a file, the Hub or a generator; every row keeps the number it has at its source."""

import codecs
import json
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ppo_lightning.data.generators import GENERATORS, generate
from ppo_lightning.errors import DataError

Row = dict[str, Any]
HUB_ID = re.compile(r"^(?P<id>[\w.-]+/[\w.-]+)(:(?P<config>[\w.-]+))?(@(?P<split>[\w.\[\]:%-]+))?$")
OWN = re.compile(r"^(?P<path>[A-Za-z_][\w.]*:[A-Za-z_]\w*)(:(?P<options>.*))?$")
FILES = (".jsonl", ".json", ".parquet")


class HubUnreachableError(DataError):
    """The Hub cannot be reached and the data set is not in the local cache."""


@dataclass(frozen=True)
class Source:
    """Rows with the words that name their origin, and what could not be read: (row number, reason)."""

    name: str
    rows: list[tuple[int, Row]]
    broken: list[tuple[int, str]]


def read(spec: str, key: str, say: Callable[[str], None] = lambda text: None) -> Source:
    """Read the rows that a `data.train` or `data.val` value names.

    Args:
        spec: file path, `owner/name[:config][@split]`, `generator:option=value,...`, or a function of your own that
            returns rows, `module:function[:option=value,...]`.
        key: the config key, for messages.
        say: where to tell what is being done.

    Raises:
        DataError: nothing there, or of an unknown kind.
        HubUnreachableError: a Hub id, and neither the Hub nor a cached copy is at hand.
    """
    name, _, options = spec.partition(":")
    if name in GENERATORS or name.startswith("reasoning_gym/"):
        return Source(name, list(enumerate(generate(name, options, key))), [])
    if Path(spec).suffix in FILES or Path(spec).is_file():
        return _read_file(Path(spec), key)
    if own := OWN.match(spec):
        return Source(own["path"], list(enumerate(generate(own["path"], own["options"] or "", key))), [])
    match = HUB_ID.match(spec)
    if match and not Path(spec).exists():
        say(f"data: loading {spec} from the Hub")
        return _read_hub(match, spec, key)
    raise DataError(
        f"{key}={spec}: must be a .jsonl, .json or .parquet file, a Hub id such as openai/gsm8k:main@train, "
        f"a generator ({', '.join(GENERATORS)}, reasoning_gym/<task>), or your own module:function"
    )


def hub_reachable(seconds: float = 3.0) -> bool:
    """Tell within `seconds` whether the Hub answers; HF_HUB_OFFLINE and HF_ENDPOINT are respected."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    url = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    if proxy:
        url = urlsplit(proxy)
    try:
        with socket.create_connection((url.hostname or "", url.port or 443), timeout=seconds):
            return True
    except OSError:
        return False


def _read_file(path: Path, key: str) -> Source:
    if not path.is_file():
        raise DataError(f"{key}={path}: no such file (looked in {Path.cwd()})")
    if path.suffix == ".parquet":
        try:
            return _parquet(path)
        except Exception as error:  # noqa: BLE001 - pyarrow raises many kinds; all mean: not a readable Parquet file
            raise DataError(f"{key}={path}: not readable as Parquet: {error}") from None
    if path.suffix == ".json":
        return _json_array(path, key)
    rows: list[tuple[int, Row]] = []
    broken: list[tuple[int, str]] = []
    for number, line in enumerate(path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines(), 1):
        if line.strip():
            _json_line(number, line, rows, broken)
    return Source(str(path), rows, broken)


def _json_line(number: int, line: bytes, rows: list[tuple[int, Row]], broken: list[tuple[int, str]]) -> None:
    try:
        _sort(number, json.loads(line.decode("utf-8")), rows, broken)
    except UnicodeDecodeError as error:
        broken.append((number, f"not UTF-8 at byte {error.start}"))
    except (ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
        broken.append((number, f"not JSON: {error}"))


def _sort(number: int, row: Any, rows: list[tuple[int, Row]], broken: list[tuple[int, str]]) -> None:
    if not isinstance(row, dict):
        broken.append((number, f"must be a JSON object, got {type(row).__name__}"))
    elif not _encodable(row):
        broken.append((number, "holds half of a surrogate pair (\\ud800 to \\udfff), which is no character"))
    else:
        rows.append((number, row))


def _encodable(value: Any) -> bool:
    """Tell whether all texts in a nested value can be written as UTF-8: JSON's escapes allow what is none."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return all(_encodable(key) and _encodable(item) for key, item in value.items())
    return not isinstance(value, list) or all(map(_encodable, value))


def _json_array(path: Path, key: str) -> Source:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{key}={path}: not readable as JSON: {error}") from None
    if not isinstance(found, list):
        raise DataError(f"{key}={path}: must hold a list of objects, got {type(found).__name__}")
    rows: list[tuple[int, Row]] = []
    broken: list[tuple[int, str]] = []
    for number, row in enumerate(found, 1):
        _sort(number, row, rows, broken)
    return Source(str(path), rows, broken)


def _parquet(path: Path) -> Source:
    """Read a table; where a text in it is not UTF-8, row by row."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    try:
        return Source(str(path), list(enumerate(table.to_pylist(), 1)), [])
    except UnicodeDecodeError:
        rows: list[tuple[int, Row]] = []
        broken: list[tuple[int, str]] = []
        for place in range(len(table)):
            try:
                rows.append((place + 1, table.slice(place, 1).to_pylist()[0]))
            except UnicodeDecodeError as error:
                broken.append((place + 1, f"not UTF-8 at byte {error.start} of a text"))
        return Source(str(path), rows, broken)


def _read_hub(match: re.Match[str], spec: str, key: str) -> Source:
    reachable = hub_reachable()
    if not reachable:
        _go_offline()
    import datasets

    try:
        found = datasets.load_dataset(match["id"], match["config"], split=match["split"] or "train")
    except Exception as error:  # noqa: BLE001 - datasets raises many kinds; all mean: not to be had
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if not reachable:
            raise HubUnreachableError(f"{key}={spec}: the Hub cannot be reached and no cached copy exists") from None
        raise DataError(f"{key}={spec}: the Hub answered: {reason}") from None
    return Source(spec, list(enumerate(found)), [])


def _go_offline() -> None:
    """Tell the Hub's libraries to load cached copies only, so that nothing retries for minutes.

    They read the variable when they are imported, which may have happened already.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets
    import huggingface_hub

    huggingface_hub.constants.HF_HUB_OFFLINE = True
    datasets.config.HF_HUB_OFFLINE = True
