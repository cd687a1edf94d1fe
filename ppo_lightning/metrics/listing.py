"""Metrics in words, for the verb `metrics`: all that a configuration logs, or one explained. Torch-free."""

from ppo_lightning.config.schema import Config
from ppo_lightning.metrics.guide import guide_to
from ppo_lightning.metrics.registry import METRICS, lookup


def listing(config: Config) -> str:
    """Return the keys that a run logs, with their denominators, and those it does not, with the switch."""
    reasons = {key: spec.absent_because(config) for key, spec in METRICS.items()}
    present = [spec for key, spec in METRICS.items() if reasons[key] is None]
    width = max((len(spec.key) for spec in present), default=0)
    lines = [f"{len(present)} metrics are logged (<...> stands for a name or number):", ""]
    for spec in sorted(present, key=lambda one: one.key):
        over = "" if spec.denominator == "-" else f" / {spec.denominator}"
        lines.append(f"  {spec.key:<{width}}  {spec.reduction}: {spec.numerator}{over}")
    absent: dict[str, list[str]] = {}
    for key, why in reasons.items():
        if why is not None:
            absent.setdefault(why, []).append(key)
    lines += ["", f"{len(METRICS) - len(present)} metrics are not, because of:"]
    for why, keys in sorted(absent.items()):
        lines += ["", f"  {why}", *(f"    {key}" for key in sorted(keys))]
    return "\n".join(lines)


def explain(key: str, config: Config | None = None) -> str:
    """Return what one key means; with a configuration also whether it is logged, and if not, why.

    Raises:
        ConfigError: no metric has this key.
    """
    spec = lookup(key)
    rows = {
        "reduction": spec.reduction,
        "numerator": spec.numerator,
        "denominator": spec.denominator,
        "unit": spec.unit,
        "stage": spec.stage,
    }
    if guide := guide_to(spec.key):
        rows |= {"meaning": guide[0].meaning, "healthy": guide[0].healthy, "if not": guide[0].action}
    if config is not None:
        rows["logged"] = f"no: {why}" if (why := spec.absent_because(config)) else "yes"
    head = key if key == spec.key else f"{key}  (one of {spec.key})"
    return "\n".join([head, *(f"  {name:<12} {text}" for name, text in rows.items())])
