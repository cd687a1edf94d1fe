"""Values that must never be written down: found by name in the environment and in options, masked wherever text leaves.

Text leaves through the run directory, the console, error messages, tracebacks and W&B.
"""

import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from ppo_lightning.config.load import get
from ppo_lightning.config.schema import Config, leaves

MASK = "<redacted>"
"""A plain scalar in YAML, where asterisks would be an alias."""
SHORTEST = 8
"""Shorter values are words that occur anywhere: masking them would spoil every text."""

VARIABLE = re.compile(
    r"(?:^|_)(?:key|token|secret|pass(?:word|wd|phrase)?|credentials?|pat)s?(?:_|$)|apikey", re.IGNORECASE
)
OPTION = re.compile(
    r"(?:api|access|private|secret|auth)_?key|(?:^|_)(?:token|secret|pass(?:word|wd|phrase)?|credentials?)$",
    re.IGNORECASE,
)
"""Within mappings of the user's own, such as reward.options; a plain `key` there may name a column."""

USER_AND_PASSWORD = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")

_learnt: set[str] = set()


def learn(config: Config) -> None:
    """Remember the secrets that a configuration holds, and those that its reward function is given."""
    for leaf in leaves():
        _learnt.update(_held(get(config, leaf)))
    given = (os.environ.get(name, "") for name in config.reward.environment)
    _learnt.update(value for value in given if len(value) >= SHORTEST)


def redact(text: str) -> str:
    """Return the text with every known secret, and every user:password of an address, masked."""
    for value in sorted(_known(), key=len, reverse=True):
        for written in (value, json.dumps(value)[1:-1]):
            text = text.replace(written, MASK)
    return USER_AND_PASSWORD.sub(MASK, text)


def guard_tracebacks() -> None:
    """Mask secrets in the traceback of an error that nothing catches, in any thread."""
    sys.excepthook = _print_redacted
    threading.excepthook = lambda given: _print_redacted(
        given.exc_type, given.exc_value or given.exc_type(), given.exc_traceback
    )


def _print_redacted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


def _known() -> set[str]:
    found = {
        value
        for name, value in os.environ.items()
        if VARIABLE.search(name) and len(value) >= SHORTEST and not os.path.exists(value)
    }
    return found | _learnt


def _held(value: Any, name: str = "") -> Iterator[str]:
    """Yield the texts in a nested value that stand under a name of a secret."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _held(item, str(key))
    elif isinstance(value, list):
        for item in value:
            yield from _held(item, name)
    elif isinstance(value, str) and len(value) >= SHORTEST and OPTION.search(name):
        yield value
