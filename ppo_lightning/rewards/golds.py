"""Gold answers to try a reward on, read from a data spec without a tokenizer. Imports no torch."""

from collections.abc import Callable

from ppo_lightning.config.schema import DataConfig
from ppo_lightning.data import formats, sources
from ppo_lightning.errors import DataError
from ppo_lightning.rewards.check import Gold

UNKNOWN = (None, "")
"""Ground truths of rows that have no one right answer: there is nothing to try."""


def read_golds(spec: str, key: str, config: DataConfig, say: Callable[[str], None] = lambda text: None) -> list[Gold]:
    """Read the gold answers of all rows that `data.train` or `data.val` names, as a run would read them.

    No tokenizer is at hand, so a prompt that a run would leave out for its length is tried all the same.

    Args:
        spec: the value of the key.
        key: data.train or data.val, for messages and for the row limit.
        config: the data section.
        say: where to tell what was read.

    Raises:
        DataError: unreadable source, or a bad row under data.bad_rows=error.
    """
    source = sources.read(spec, key, say)
    rows = source.rows[: config.max_train_rows if key == "data.train" else config.max_val_rows]
    kind = formats.detect_rows(rows, config, source.name) if rows else formats.QA
    found: list[Gold] = []
    bad = list(source.broken)
    for number, row in rows:
        try:
            example = formats.read_row(row, kind, config, source.name)
        except DataError as error:
            bad.append((number, str(error)))
            continue
        extra = {"index": number, **example.extra_info}
        found.append(Gold(example.data_source, example.ground_truth, extra, example.chat))
    if bad and config.bad_rows == "error":
        raise DataError(f"{key}={source.name}: {len(bad)} bad rows (first: row {bad[0][0]}: {bad[0][1]})")
    known = [gold for gold in found if gold.ground_truth not in UNKNOWN]
    left_out = "".join(
        f", {number} {what}"
        for number, what in ((len(bad), "bad rows"), (len(found) - len(known), "without one right answer"))
        if number
    )
    say(f"{key}: {len(known)} gold answers from {source.name} ({kind.said}){left_out}")
    return known
