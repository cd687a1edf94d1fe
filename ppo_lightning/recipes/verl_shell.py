"""Read verl's settings out of a shell script or a Hydra file. Nothing is run; what cannot be read is said. No torch."""

import ast
import operator
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from ppo_lightning.errors import ConfigError

ENTRY = "main_ppo"
ARRAY = re.compile(r"^[ \t]*(?:declare[ \t]+-a[ \t]+)?(\w+)\+?=\(\s*$(.*?)^[ \t]*\)[ \t]*$", re.MULTILINE | re.DOTALL)
SCALAR = re.compile(r"^[ \t]*(?:export[ \t]+|local[ \t]+)?(\w+)=([^\s(].*?)?[ \t]*$", re.MULTILINE)
SUM = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
NAME = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)")
OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
DEPTH = 20
"""How often a variable may lead to another."""


@dataclass
class Found:
    """Settings that were read.

    Attributes:
        values: {verl key: value}, interpolations resolved where they could be.
        problems: what could not be read, one line each.
    """

    values: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read(items: list[str]) -> Found:
    """Read files (`.sh` and the like, `.yaml`) and overrides in the order given; later ones win.

    Raises:
        ConfigError: a file is missing or holds nothing of verl's.
    """
    found = Found()
    for item in items:
        file = Path(item).expanduser()
        if file.suffix in (".yaml", ".yml") and "=" not in item:
            found.values |= _hydra(file)
        elif "=" in item and not file.is_file():
            _override(item, found)
        else:
            for word in _script(_text(file), str(file), found):
                _override(word, found)
    return found


def _text(file: Path) -> str:
    if not file.is_file():
        raise ConfigError(f"recipes import-verl {file}: no such file; give a shell script, a Hydra YAML, or key=value")
    return file.read_text(encoding="utf-8")


def _hydra(file: Path) -> dict[str, Any]:
    try:
        tree = OmegaConf.load(file) if file.is_file() else OmegaConf.create(yaml.safe_load(_text(file)))
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not readable as YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{file}: must hold a mapping of keys to values")
    flat = _flatten(OmegaConf.to_container(tree, resolve=False))
    return {key: value for key, value in flat.items() if not key.startswith(("defaults", "hydra."))}


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        nested = isinstance(value, dict) and value
        flat |= _flatten(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return flat


def _script(text: str, name: str, found: Found) -> list[str]:
    """Return the words key=value of the command that calls verl's trainer, variables filled in."""
    text = re.sub(r"\\\n", " ", text)
    rest = ARRAY.sub("", text)
    scalars: dict[str, str] = {}
    for match in SCALAR.finditer(rest):
        scalars[match[1]] = _own_default(match[1], _summed(match[2] or "", scalars))
    text, rest = _summed(text, scalars), _summed(rest, scalars)
    arrays = {match[1]: _words(match[2]) for match in ARRAY.finditer(text)}
    commands = [line for line in rest.splitlines() if ENTRY in line and not line.lstrip().startswith("#")]
    if not commands:
        raise ConfigError(f"{name}: no command calls verl.trainer.{ENTRY}")
    if len(commands) > 1:
        found.problems.append(f"{name} calls verl {len(commands)} times: only the first is read")
    words: list[str] = []
    for word in _words(commands[0].partition(ENTRY)[2]):
        listed = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", word)
        words += arrays[listed[1]] if listed and listed[1] in arrays else [word]
    return [filled for word in words if "=" in (filled := _fill(word, scalars)) and not filled.startswith("-")]


def _words(text: str) -> list[str]:
    """Split as a shell does, up to a pipe, a redirection or the end of the command."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|;&<")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set("|;&<"):
                break
            words.append(word)
    except ValueError:  # an open quotation mark: what was read until there counts
        return words
    return words


def _own_default(name: str, text: str) -> str:
    """Return a variable's text; X=${X:-5} is 5, since the environment of whoever ran the script is not here."""
    words = _words(re.sub(rf"\$\{{{name}:?-([^{{}}]*)\}}", r"\1", text))
    return words[0] if words else ""


def _fill(word: str, scalars: Mapping[str, str]) -> str:
    """Replace $NAME and ${NAME:-default}; what is not known stays as it is written."""

    def known(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        if name == "HOME":
            return str(Path.home())
        value = scalars.get(name, default)
        return match[0] if value is None else value

    for _ in range(DEPTH):
        filled = NAME.sub(known, word)
        if filled == word:
            break
        word = filled
    return word


def _summed(text: str, scalars: Mapping[str, str]) -> str:
    """Replace $((sums)) by their value where every name in them is known."""
    return SUM.sub(lambda match: _sum(match[1], scalars) or match[0], text)


def _sum(text: str, scalars: Mapping[str, str]) -> str | None:
    """Evaluate whole-number arithmetic, in which names stand for variables."""
    for _ in range(DEPTH):
        text = re.sub(r"\$?([A-Za-z_]\w*)", lambda match: scalars[match[1]] if match[1] in scalars else match[0], text)
    try:
        return str(_evaluate(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, KeyError, ValueError, ZeroDivisionError):
        return None


def _evaluate(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError(ast.dump(node))


def _override(item: str, found: Found) -> None:
    """Read one `key=value`, `+key=value` or `~key`."""
    key, _, written = item.partition("=")
    if key.startswith("~"):
        found.problems.append(f"{item}: removing a key has no counterpart")
        return
    try:
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"x={written}"]), resolve=False)["x"]  # type: ignore[index,call-overload]
    except Exception:  # noqa: BLE001 - whatever YAML cannot read is text
        value = written
    found.values[key.lstrip("+")] = value
