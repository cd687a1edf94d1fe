"""The JSON Schema of a recipe, for editors: types, choices, defaults and meanings out of the dataclasses. No torch."""

import json
import types
from dataclasses import MISSING, fields
from typing import Any, Union, cast, get_args, get_origin

from ppo_lightning.config.load import VERSION
from ppo_lightning.config.schema import Config
from ppo_lightning.shipped import shipped

KINDS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}
FILE = "recipe.schema.json"
"""Its name beside the shipped recipes."""


def json_schema() -> dict[str, Any]:
    """Return the schema of a recipe file."""
    properties = {
        "version": {"type": "integer", "minimum": 1, "maximum": VERSION, "description": "format of the recipe"},
        "defaults": {
            "type": "array",
            "description": "presets, one `group: preset` each",
            "items": {"type": "object", "properties": _presets(), "additionalProperties": False, "maxProperties": 1},
        },
        **_section(Config),
        "offline": {
            "type": "object",
            "description": "options that hold where the Hub cannot be reached",
            "properties": _section(Config),
            "additionalProperties": False,
        },
        "expect": {
            "description": "what a run must reach: `recipes validate RECIPE --run DIR`",
            "anyOf": [_expectation(), {"type": "array", "items": _expectation()}],
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ppo_lightning recipe",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def to_text() -> str:
    """Return the schema as it is shipped."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _section(cls: type) -> dict[str, Any]:
    """Return the properties of one section."""
    found = {}
    for item in fields(cls):
        if hasattr(item.type, "__dataclass_fields__"):
            section = cast(type, item.type)
            found[item.name] = {
                "type": "object",
                "description": (section.__doc__ or "").strip(),
                "properties": _section(section),
                "additionalProperties": False,
            }
        else:
            found[item.name] = _option(item)
    return found


def _option(item: Any) -> dict[str, Any]:
    made = item.default_factory is not MISSING  # a list or a mapping, made anew for each configuration
    default = item.default_factory() if made else item.default
    schema = _kind(item.type) | {"description": item.metadata["doc"], "default": default}
    if item.metadata["choices"]:
        schema["enum"] = list(item.metadata["choices"])
    return schema


def _kind(kind: Any) -> dict[str, Any]:
    """Return the schema of a Python type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        parts = [_kind(part) for part in arguments]
        return {"type": [part["type"] for part in parts]}
    if origin is list:
        return {"type": "array", "items": _kind(arguments[0])}
    if origin is dict:
        return {"type": "object"}
    return dict(KINDS[kind])


def _presets() -> dict[str, Any]:
    groups = sorted(path for path in shipped("conf").iterdir() if path.is_dir())
    return {group.name: {"enum": sorted(file.stem for file in group.glob("*.yaml"))} for group in groups}


def _expectation() -> dict[str, Any]:
    number = {"type": "number"}
    bounds = ("at_least", "at_most", "at_least_times_start", "at_most_times_start")
    return {
        "type": "object",
        "properties": {
            "metric": {"type": "string", "description": "key in metrics.jsonl"},
            "at": {"enum": ["last", "max", "min"], "description": "which of its values counts"},
            **dict.fromkeys(bounds, number),
        },
        "required": ["metric"],
        "minProperties": 2,
        "additionalProperties": False,
    }
