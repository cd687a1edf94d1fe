"""`explain KEY`: what a batch field, a stage, a metric or an option is, in the words of its declaration. No torch."""

from ppo_lightning.config.load import Loaded, get, nearest
from ppo_lightning.config.schema import leaves
from ppo_lightning.errors import ConfigError
from ppo_lightning.explain.flow import StageView, flow, shape
from ppo_lightning.metrics.listing import explain as explain_metric
from ppo_lightning.metrics.registry import METRICS, lookup
from ppo_lightning.protocol.fields import FIELDS
from ppo_lightning.stages import STAGES


def explain_key(key: str, loaded: Loaded) -> str:
    """Return everything that goes by the name `key`, each with what becomes of it under the recipe.

    Raises:
        ConfigError: nothing does; the message names the nearest.
    """
    found = [text for explain in (_stages, _fields, _options, _metrics) for text in explain(key, loaded)]
    if not found:
        valid = [*FIELDS, *(stage.name for stage in STAGES), *leaves(), *METRICS]
        raise ConfigError(
            f"explain {key}: no batch field, stage, option or metric has this name.{nearest(key, valid)} "
            "`explain` shows stages and fields, `config` options, `metrics` metrics."
        )
    return "\n\n".join(found)


def _stages(key: str, loaded: Loaded) -> list[str]:
    return [_stage(stage) for stage in flow(loaded.config).stages[1:] if stage.name == key]


def _stage(stage: StageView) -> str:
    here = {way: [t.field.name for t in getattr(stage, way) if t.off is None] for way in ("reads", "writes")}
    rows = {
        "hook": stage.hook,
        "runs": f"no: {stage.off}" if stage.off else "yes",
        **({} if stage.off else {way: ", ".join(names) or "nothing" for way, names in here.items()}),
        "timer": f"timing_s/{stage.timer}",
    }
    missing = [f"not {touch.field.name}: {touch.off}" for touch in stage.writes if touch.off and not stage.off]
    return _block(f"{stage.name}: stage {stage.number} of {len(STAGES)}", rows, missing)


def _fields(key: str, loaded: Loaded) -> list[str]:
    if key not in FIELDS:
        return []
    view = next(view for view in flow(loaded.config).fields if view.field.name == key)
    rows = {
        "meaning": view.field.doc,
        "layer": view.field.layer,
        "axes, type": shape(view.field),
        "written by": f"nobody: {view.off}" if view.off else ", ".join(view.writers),
        "read by": ", ".join(view.readers) or "nobody; it is in the rollout dump and for code of your own",
        "lifetime": view.lifetime,
    }
    return [_block(f"{key}: field of the batch", rows if not view.off else dict(list(rows.items())[:4]))]


def _options(key: str, loaded: Loaded) -> list[str]:
    names = [name for name in leaves() if name == key or ("." not in key and name.rpartition(".")[2] == key)]
    return [_option(name, loaded) for name in names]


def _option(key: str, loaded: Loaded) -> str:
    item = leaves()[key]
    rows = {
        "meaning": item.metadata["doc"],
        "type": type_name(item.type),
        "default": _value(get(type(loaded.config)(), key)),
        "here": f"{_value(get(loaded.config, key))}  (from: {loaded.origin[key]})",
    }
    if item.metadata["choices"]:
        rows["one of"] = ", ".join(str(choice) for choice in item.metadata["choices"])
    return _block(f"{key}: option", rows)


def type_name(kind: object) -> str:
    """Return an option's type as a person writes it: `int`, `float | None`."""
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)


def _metrics(key: str, loaded: Loaded) -> list[str]:
    try:
        lookup(key)
    except ConfigError:
        return []
    head, _, rest = explain_metric(key, loaded.config).partition("\n")
    return [f"{head}: metric\n{rest}"]


def _value(value: object) -> str:
    return "null" if value is None else str(value)


def _block(head: str, rows: dict[str, str], more: list[str] | None = None) -> str:
    return "\n".join([head, *(f"  {name:<12} {text}" for name, text in rows.items()), *(f"  {x}" for x in more or [])])
