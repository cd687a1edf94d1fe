"""Reward functions as verl and TRL users write them, unmodified: load one, detect its signature, form its arguments.

Runs inside worker processes, so it imports the standard library only.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERL_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
OFFERED = (*VERL_ARGUMENTS, "prompt", "response_ids")
ANSWER_NAMES = ("answer", "answers", "solution", "solutions", "target", "targets", "label", "labels")
SIGNATURES = (
    "compute_score(data_source, solution_str, ground_truth, extra_info) as in verl, "
    "compute_score(data_sources, solution_strs, ground_truths, extra_infos) as in verl's batch manager, "
    "or f(prompts, completions, **columns) as in TRL"
)


@dataclass(frozen=True)
class Function:
    """A loaded reward function and the facts needed to call it."""

    call: Callable[..., Any]
    style: str
    is_async: bool
    accepts: frozenset[str] | None  # None: any keyword
    options: Mapping[str, Any]
    line: str


def load(place: str, name: str, options: Mapping[str, Any], is_file: bool) -> Function:
    """Import a function and detect its signature.

    Raises:
        ValueError: the file, the function or an option does not exist, or the signature is none of the known ones.
    """
    module = import_file(Path(place)) if is_file else importlib.import_module(place)
    call = getattr(module, name, None)
    if not callable(call):
        names = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise ValueError(f"{place} has no function {name!r}: it has {', '.join(names) or 'none'}; set reward.name")
    style, accepts = detect_style(call, f"{place}:{name}")
    unknown = sorted(set(options) - accepts) if accepts is not None else []
    if unknown:
        raise ValueError(
            f"reward.options has {', '.join(unknown)}, which {name} does not take: it takes {signature_of(call)}"
        )
    is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)
    return Function(call, style, is_async, accepts, dict(options), _line(call, place, name, style, is_async, is_file))


def import_file(path: Path) -> Any:
    """Import a Python file under a name of its own; files beside it can be imported by it."""
    if not path.is_file():
        raise ValueError(f"reward.path must be a Python file - there is none at {path}")
    path = path.resolve()
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module_name = f"reward_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"reward.path must end in .py - got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def signature_of(call: Callable[..., Any]) -> str:
    """Return the signature as text, or `(...)` where there is none to see."""
    try:
        return str(inspect.signature(call))
    except (TypeError, ValueError):
        return "(...)"


def detect_style(call: Callable[..., Any], where: str) -> tuple[str, frozenset[str] | None]:
    """Return (style, accepted keywords; None where the function takes any).

    Raises:
        ValueError: the signature is none of the known ones.
    """
    parameters = inspect.signature(call).parameters.values()
    names = frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if "completions" in names:
        style = "trl"
    elif "solution_strs" in names:
        style = "verl_batch"
    elif "solution_str" in names or (open_ended and not names):
        style = "verl"
    else:
        raise ValueError(f"{where}{signature_of(call)} is no known reward signature: use {SIGNATURES}")
    return style, None if open_ended else names


def _line(call: Any, place: str, name: str, style: str, is_async: bool, is_file: bool) -> str:
    mode = "async" if is_async else "sync"
    told = {"verl": "one sample per call (verl)", "verl_batch": "a whole batch per call (verl batch)"}
    text = f"{name}{signature_of(call)}: {mode}, {told.get(style, 'a whole batch per call (TRL)')}"
    if not is_file:
        return f"{place}:{text}"
    return f"{place}:{text}, sha256 {hashlib.sha256(Path(place).read_bytes()).hexdigest()}"


def sample_arguments(function: Function, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords for one sample: verl's four, plus prompt and response_ids for who names them."""
    accepts = function.accepts
    if accepts is None:
        named = set(inspect.signature(function.call).parameters)
        offered = [name for name in OFFERED if name in VERL_ARGUMENTS or name in named]
    else:
        offered = [name for name in OFFERED if name in accepts]
    return {**{name: sample[name] for name in offered}, **function.options}


def batch_arguments(function: Function, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keywords for one call over all samples, in verl's or TRL's names."""
    if function.style == "verl_batch":
        return {**{f"{name}s": [sample[name] for sample in samples] for name in VERL_ARGUMENTS}, **function.options}
    columns = trl_columns(samples)
    parameters = inspect.signature(function.call).parameters
    for name, parameter in parameters.items():
        if name in columns or name in function.options or parameter.kind is parameter.VAR_KEYWORD:
            continue
        if name in ANSWER_NAMES:
            columns[name] = columns["ground_truth"]
        elif parameter.default is parameter.empty:
            raise ValueError(f"the function needs the column {name!r}: the rows have {', '.join(sorted(columns))}")
    if function.accepts is not None:
        columns = {name: column for name, column in columns.items() if name in function.accepts}
    return {**columns, **function.options}


def trl_columns(samples: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the lists that a TRL reward function gets; a chat prompt makes its completion a list of one message."""
    columns: dict[str, list[Any]] = {}
    for name in sorted({name for sample in samples for name in sample["extra_info"] or {}}):
        columns[name] = [(sample["extra_info"] or {}).get(name) for sample in samples]
    columns["prompts"] = [sample["prompt"] for sample in samples]
    columns["completions"] = [
        [{"role": "assistant", "content": sample["solution_str"]}]
        if isinstance(sample["prompt"], list)
        else sample["solution_str"]
        for sample in samples
    ]
    columns["completion_ids"] = [sample["response_ids"] for sample in samples]
    columns["ground_truth"] = [sample["ground_truth"] for sample in samples]
    columns["data_source"] = [sample["data_source"] for sample in samples]
    return columns
