"""What a logger is."""

from typing import Any, Protocol

Metrics = dict[str, float | None]
Samples = dict[str, list[dict[str, Any]]]
"""`training` or `validation` -> rows as they are dumped."""


class Sink(Protocol):
    """Takes each step once, in order; runs in a thread of its own, and whatever it raises is said and counted."""

    name: str

    def __call__(self, step: int, metrics: Metrics, samples: Samples) -> None:
        """Take a step's metrics and, where the step has any, its rollouts."""

    def close(self) -> None:
        """Finish what was taken."""


def finite(metrics: Metrics) -> dict[str, float]:
    """Return the metrics that are numbers."""
    return {key: value for key, value in metrics.items() if value is not None}
