"""Compose a run's configuration: defaults <- presets <- recipe <- command line. Imports no torch.

Every problem (unknown key, wrong type, illegal value) is collected and reported together, each with where it was
written. The origin of every value is kept for `python -m ppo_lightning config`.
"""

import difflib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ppo_lightning.config.schema import Config, leaves
from ppo_lightning.errors import ConfigError
from ppo_lightning.shipped import shipped

VERSION = 1
"""Of the recipe format: raised when an option changes its name or meaning."""

SECRET = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)


@dataclass(frozen=True)
class Loaded:
    """A composed configuration with what a person wants to know about it."""

    config: Config
    origin: dict[str, str]
    recipe_path: Path | None = None
    offline: dict[str, Any] = field(default_factory=dict)
    expect: Any = field(default_factory=dict)
    presets: dict[str, str] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)


@dataclass
class Layer:
    """One source of values: flat {dotted key: value} and the words that name it in messages."""

    origin: str
    values: dict[str, Any]


def load(recipe: str | Path | None, overrides: list[str] | None = None) -> Loaded:
    """Compose the configuration of a recipe file and command-line overrides (`key=value` or `group=preset`).

    Raises:
        ConfigError: naming every unknown key, wrong type and illegal value at once.
    """
    tree = _read_recipe(recipe) if recipe else {}
    problems: list[str] = []
    _check_version(recipe, tree.pop("version", VERSION))
    presets = _recipe_presets(tree.pop("defaults", []), problems)
    offline, expect = tree.pop("offline", {}) or {}, tree.pop("expect", {}) or {}
    cli_values, cli_presets = _split_overrides(overrides or [], problems)
    layers = [_preset_layer(g, p, problems) for g, p in presets.items() if g not in cli_presets]
    if recipe:
        layers.append(Layer(str(recipe), _flatten(tree)))
    layers += [_preset_layer(g, p, problems) for g, p in cli_presets.items()]
    layers.append(Layer("command line", cli_values))
    config, origin = compose(layers, problems)
    return Loaded(
        config,
        origin,
        Path(recipe) if recipe else None,
        _flatten(offline),
        expect,
        presets | cli_presets,
        overrides or [],
    )


def apply(loaded: Loaded, values: dict[str, Any], origin: str) -> Loaded:
    """Return the configuration with further values on top, such as a recipe's offline entries."""
    base = {key: get(loaded.config, key) for key in leaves()}
    config, new_origin = compose([Layer("", base), Layer(origin, values)], [])
    merged = {key: origin if key in values else loaded.origin[key] for key in new_origin}
    return replace(loaded, config=config, origin=merged)


def compose_tree(tree: dict[str, Any], origin: str) -> Config:
    """Return the configuration of a nested mapping over the defaults.

    Raises:
        ConfigError: naming every unknown key, wrong type and illegal value at once.
    """
    return compose([Layer(origin, _flatten(tree))], [])[0]


def compose(layers: list[Layer], problems: list[str]) -> tuple[Config, dict[str, str]]:
    """Merge flat layers over the defaults; raise one ConfigError with all `problems` found here and before."""
    known = leaves()
    tree = OmegaConf.structured(Config)
    origin = dict.fromkeys(known, "default")
    for layer in layers:
        fitting: dict[str, Any] = {}
        for written, value in layer.values.items():
            key = _owner(written, known)
            problem = _problem(key or written, written, value, layer.origin, known)
            if problem:
                problems.append(problem)
            elif key is not None:
                fitting[written] = value
                origin[key] = layer.origin
        tree = _merge(tree, fitting, layer.origin, known, problems)
    if not problems:
        try:
            return cast(Config, OmegaConf.to_object(tree)), origin
        except OmegaConfBaseException as error:
            problems.append(_first_line(error))
    raise ConfigError("\n".join(problems))


def preset_values(group: str, preset: str) -> dict[str, Any]:
    """Return what a preset sets, as {dotted key: value}.

    Raises:
        ConfigError: there is no such preset.
    """
    problems: list[str] = []
    layer = _preset_layer(group, preset, problems)
    if problems:
        raise ConfigError(problems[0])
    return layer.values


def get(config: Config, key: str) -> Any:
    """Return the value at a dotted key."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def to_yaml(config: Config) -> str:
    """Return the resolved configuration as YAML."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def nearest(name: str, valid: list[str]) -> str:
    """Return ' Did you mean ...?' for a misspelled name, or an empty string."""
    found = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    if not found and "." not in name:
        found = [key for key in valid if key.rpartition(".")[2] == name][:1]
    return f" Did you mean `{found[0]}`?" if found else ""


def _read_recipe(path: str | Path) -> dict[str, Any]:
    file = Path(path)
    if not file.is_file():
        names = sorted(p.stem for p in shipped("recipes").glob("*.yaml"))
        raise ConfigError(f"--config {path}: no such file. Shipped recipes: {', '.join(names)} (recipes ls)")
    return _read_yaml(file)


def _check_version(recipe: str | Path | None, version: Any) -> None:
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise ConfigError(
            f"{recipe}: version={version!r} must be a recipe format that this release reads, 1 to {VERSION}: a higher "
            "one is for a newer ppo_lightning; install that, or remove `version:` and see what is reported"
        )


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        tree = OmegaConf.load(file)
    except Exception as error:  # noqa: BLE001 - yaml and omegaconf raise many kinds; all mean: this file is not readable
        raise ConfigError(f"{file}: not readable as YAML: {_first_line(error)}") from None
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{file}: must hold a mapping of keys to values")
    return cast(dict[str, Any], OmegaConf.to_container(tree, resolve=False))


def _recipe_presets(defaults: list[Any], problems: list[str]) -> dict[str, str]:
    presets: dict[str, str] = {}
    for entry in defaults:
        if isinstance(entry, dict) and len(entry) == 1:
            presets |= {str(k): str(v) for k, v in entry.items()}
        else:
            problems.append(f"defaults: each entry must read `group: preset`, got {entry!r}")
    return presets


def _split_overrides(overrides: list[str], problems: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    presets: dict[str, str] = {}
    groups = {folder.name for folder in shipped("conf").iterdir() if folder.is_dir()}
    for item in overrides:
        key, equals, value = item.partition("=")
        if not equals:
            problems.append(f"command line: `{item}` must read key=value")
        elif key in groups:
            presets[key] = value
        else:
            tree = OmegaConf.to_container(OmegaConf.from_dotlist([item]), resolve=False)
            values |= _flatten(cast(dict[str, Any], tree))
    return values, presets


def _preset_layer(group: str, preset: str, problems: list[str]) -> Layer:
    file = shipped("conf") / group / f"{preset}.yaml"
    if file.is_file() and file.resolve().is_relative_to(shipped("conf").resolve()):
        return Layer(f"preset {group}={preset}", _flatten(_read_yaml(file)))
    valid = sorted(p.stem for p in (shipped("conf") / group).glob("*.yaml"))
    problems.append(
        f"{group}={preset}: no such preset; valid: {', '.join(valid) or 'none, no such group'}.{nearest(preset, valid)}"
    )
    return Layer("", {})


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested sections into dotted keys; a mapping that is an option's own value stays whole."""
    flat: dict[str, Any] = {}
    known = leaves()
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in known:
            flat |= _flatten(value, f"{key}.") if value else {key: value}
        else:
            flat[key] = value
    return flat


def _owner(key: str, known: dict[str, Any]) -> str | None:
    """Return the option that `key` sets: itself, or the mapping option it lies in (`actor.loss_options.tau`)."""
    while key:
        if key in known:
            return key
        key = key.rpartition(".")[0]
    return None


def _problem(key: str, written: str, value: Any, origin: str, known: dict[str, Any]) -> str | None:
    where = f"{origin}: `{written}`"
    if key not in known:
        sections = {k.rpartition(".")[0] for k in known}
        if written in sections:
            return (
                f"{where} is a section: set its keys, such as {next(k for k in known if k.startswith(written + '.'))}"
            )
        return f"{where} is not an option.{nearest(written, list(known))}"
    if any("oc.env" in text and SECRET.search(text) for text in _texts(value)):
        return f"{where} would copy a secret from the environment into the run directory: leave it in the environment"
    choices = known[key].metadata["choices"]
    if choices and value not in choices:
        names = [str(choice) for choice in choices]
        return f"{where} must be one of {', '.join(names)}; got {value!r}.{nearest(str(value), names)}"
    return None


def _texts(value: Any) -> list[str]:
    """Return the texts in a nested value."""
    if isinstance(value, dict | list):
        return [text for item in (value.values() if isinstance(value, dict) else value) for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def _merge(
    tree: DictConfig, values: dict[str, Any], origin: str, known: dict[str, Any], problems: list[str]
) -> DictConfig:
    """Merge a layer, at once if it can be (a merge copies the whole tree), else key by key to name those that fail."""
    pieces = {written: _nested(written, value) for written, value in values.items()}
    try:
        return cast(DictConfig, OmegaConf.merge(tree, *pieces.values()))
    except OmegaConfBaseException:
        for written, piece in pieces.items():
            try:
                tree = cast(DictConfig, OmegaConf.merge(tree, piece))
            except OmegaConfBaseException as error:
                kind = known[_owner(written, known) or written].type
                name = kind.__name__ if isinstance(kind, type) else str(kind)
                problems.append(f"{origin}: `{written}` must be {name}: {_first_line(error)}")
        return tree


def _nested(written: str, value: Any) -> DictConfig:
    for part in reversed(written.split(".")):
        value = {part: value}
    return cast(DictConfig, OmegaConf.create(value))


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
