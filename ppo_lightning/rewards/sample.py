"""What goes into a reward and what comes out: the records that the worker pool, the managers and the trainer share."""

from dataclasses import dataclass, field
from typing import Any

FAULTS = ("timeout", "exception", "worker_death", "none", "nan", "wrong_type", "missing_score", "too_few")
"""Kinds of failed scoring, as counted in `reward/<kind>`:

timeout        the sample took longer than reward.timeout_s; its worker was killed
exception      the function raised (MemoryError and RecursionError included), or could not be loaded
worker_death   the worker process died while scoring the sample, twice, the second time alone in a fresh process
none           the function returned None
nan            the score is NaN or infinite
wrong_type     the score is no number (text, list, ...)
missing_score  a dict without the key `score`
too_few        a function that scores whole batches returned another number of scores than there are samples
"""


@dataclass(frozen=True)
class Sample:
    """One finished response and what a reward may know about it.

    Attributes:
        row: position in the batch; results come back in this order.
        data_source: dataset of the row; picks the built-in scorer when reward.scorer is auto.
        solution_str: the decoded response alone, special tokens skipped.
        ground_truth: the row's answer, whatever type the dataset has.
        extra_info: the row's further columns.
        prompt: text, or the list of chat messages when the prompt is a chat.
        response_ids: token ids of the response, for functions that ask for them (token and turn rewards).
    """

    row: int
    data_source: str
    solution_str: str
    ground_truth: Any = None
    extra_info: dict[str, Any] | None = None
    prompt: str | list[dict[str, Any]] | None = None
    response_ids: list[int] | None = None


@dataclass(frozen=True)
class Scored:
    """The outcome for one sample: a score, or the kind of fault that took its place.

    Attributes:
        row: as in the sample.
        score: the weighted sum of all parts; None exactly when `fault` is set.
        extra: extra columns of this row; a key that is missing here is absent, not 0.
        fault: one of FAULTS, or None.
        detail: traceback, last output or a sentence about the fault; also set when a sample left processes behind.
        seconds: wall seconds spent on the sample, all parts together.
    """

    row: int
    score: float | None
    extra: dict[str, Any] = field(default_factory=dict)
    fault: str | None = None
    detail: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Target:
    """A reward function by address, loaded inside a worker and never in the trainer.

    Attributes:
        place: module path, or the path of a Python file.
        name: function in it.
        options: keyword arguments passed on every call.
        is_file: whether `place` is a file.
    """

    place: str
    name: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    is_file: bool = False

    @property
    def key(self) -> str:
        """The same for two targets exactly when they load and call the same function the same way."""
        return repr((self.place, self.name, self.is_file, sorted(self.options.items())))


@dataclass(frozen=True)
class Loaded:
    """What a worker found out about a target.

    Attributes:
        style: verl (one sample), verl_batch or trl (whole batches).
        is_async: the function is a coroutine function: many samples share a worker.
        line: one line that says what was loaded and how it is called.
    """

    style: str
    is_async: bool
    line: str

    @property
    def batched(self) -> bool:
        """Whether one call scores all samples of a step."""
        return self.style != "verl"
