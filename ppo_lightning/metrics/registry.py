"""Every metric that can be logged: reduction, numerator, denominator, unit, stage, and its switch. Torch-free."""

from difflib import get_close_matches

from ppo_lightning.errors import ConfigError
from ppo_lightning.metrics.keys_step import STEP
from ppo_lightning.metrics.keys_update import UPDATE
from ppo_lightning.metrics.keys_validation import VALIDATION
from ppo_lightning.metrics.spec import MetricSpec

METRICS: dict[str, MetricSpec] = {spec.key: spec for spec in (*UPDATE, *STEP, *VALIDATION)}


def lookup(key: str) -> MetricSpec:
    """Return the declaration of a logged key, or of a family by its pattern.

    Raises:
        ConfigError: no metric has this key; the message names the nearest.
    """
    if key in METRICS:
        return METRICS[key]
    found = next((spec for spec in METRICS.values() if spec.matches(key)), None)
    if found is not None:
        return found
    near = (
        get_close_matches(key, METRICS, n=3, cutoff=0.6)
        or [known for known in METRICS if key.rpartition("/")[2] == known.rpartition("/")[2]][:3]
    )
    hint = f"did you mean {', '.join(near)}?" if near else "`metrics --config RECIPE` lists them all"
    raise ConfigError(f"a metric key must be one that can be logged - got {key!r} - {hint}")
