"""The responses that a report carries: whole groups of evenly spaced steps, compressed in blocks. Imports no torch.

A page that held every response of a long run could not be opened; the rule of what is left out is said on the page.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ppo_lightning.report.dumps import Row, dump_rows
from ppo_lightning.report.embed import as_json, packed
from ppo_lightning.report.reading import Run

BYTES = 24_000_000
"""Text of all samples of a page before compression; about a fifth of it after."""
BLOCK = 256_000
"""Text that is compressed together, and unpacked together when one of its steps is looked at."""
ROWS = 64
"""Most responses of a step."""
KINDS = ("step", "validation")
KNOWN = frozenset(
    {"input", "output", "gts", "score", "step", "uid", "data_source", "extra_info", "prompt_length", "response_length"}
    | {"trained_tokens", "finish_reason", "advantage", "tokens"}
)


@dataclass
class Samples:
    """What the page embeds of one run.

    Attributes:
        index: one entry per step that is there: [kind, step, block, place in the block, rows].
        blocks: compressed lists of steps.
        rule: what is here and what is not, in words.
    """

    index: list[list[Any]] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    rule: str = ""


def samples(run: Run, budget: int = BYTES) -> Samples:
    """Return the samples of a run that fit the budget."""
    files = [(kind, step, file) for kind in KINDS for step, file in run.dumps(kind).items()]
    files.sort(key=lambda item: (item[1], KINDS.index(item[0])))
    found = Samples()
    if not files:
        found.rule = "The run wrote no rollouts (logging.rollouts=off), or ended before its first step."
        return found
    chosen = evenly(files, budget // max(_typical_bytes(files), 1))
    waiting: list[str] = []
    cut, left = False, budget
    for kind, step, file in chosen:
        rows, more = first_groups(file)
        text = as_json([_compact(row) for row in rows])
        left -= len(text)
        if left < 0 and found.index:
            chosen = chosen[: len(found.index)]
            break
        cut |= more
        if waiting and sum(map(len, waiting)) + len(text) > BLOCK:
            _close(waiting, found)
        found.index.append([kind, step, len(found.blocks), len(waiting), len(rows)])
        waiting.append(text)
    _close(waiting, found)
    found.rule = _rule(len(found.index), len(files), cut)
    return found


def evenly(items: list[Any], count: int) -> list[Any]:
    """Return `count` items at even distances, the first and the last among them; all if there are no more."""
    if count >= len(items):
        return items
    count = max(count, 2)
    places = sorted({round(place * (len(items) - 1) / (count - 1)) for place in range(count)})
    return [items[place] for place in places]


def first_groups(file: Path, limit: int = ROWS) -> tuple[list[Row], bool]:
    """Return the first rows of a dump, groups kept whole where one fits, and whether there are more."""
    rows: list[Row] = []
    for row in dump_rows(file):
        if len(rows) == limit:
            whole = [kept for kept in rows if _uid(kept) != _uid(row)]
            return whole or rows, True
        rows.append(row)
    return rows, False


def _typical_bytes(files: list[tuple[str, int, Path]]) -> int:
    """Return the text of a step, measured on a few of them."""
    probes = evenly(files, 5)
    texts = [as_json([_compact(row) for row in first_groups(file)[0]]) for _, _, file in probes]
    return sum(map(len, texts)) // len(texts)


def _compact(row: Row) -> Row:
    """Return a row as the page reads it: short names, nothing twice."""
    beside = {name: value for name, value in row.items() if name not in KNOWN}
    named = {
        "u": "uid", "p": "input", "o": "output", "a": "gts", "s": "score", "d": "data_source", "P": "prompt_length",
        "L": "response_length", "T": "trained_tokens", "f": "finish_reason", "A": "advantage", "t": "tokens",
    }  # fmt: skip
    found = {short: row[long] for short, long in named.items() if long in row and row[long] is not None}
    return found | ({"x": beside} if beside else {})


def _uid(row: Row) -> Any:
    return row.get("uid")


def _close(waiting: list[str], found: Samples) -> None:
    if waiting:
        found.blocks.append(packed(f"[{','.join(waiting)}]"))
        waiting.clear()


def _rule(shown: int, there: int, cut: bool) -> str:
    if shown == there and not cut:
        return f"All responses of all {there} dumps are here."
    which = f"all {there}" if shown == there else f"{shown} of {there}"
    how = "" if shown == there else ", at even distances, the first among them"
    rows = f"; of each its first whole groups, up to {ROWS} responses" if cut else ""
    return f"Responses of {which} dumps are here{how}{rows}. The rest is in the run directory, in rollouts/."
