"""Our side of the data-flow benchmark: name of a case -> a call without arguments, made for a size."""

from collections.abc import Callable
from typing import Any

import torch
from dataflow_inputs import Size, columns, fields, validation

Call = Callable[[], Any]
OPTIONS = {"gamma": 1.0, "lam": 1.0, "norm_adv_by_std_in_grpo": True}
DISCOUNTED = {**OPTIONS, "gamma": 0.99, "lam": 0.95}
ESTIMATORS = (
    "gae",
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "gdpo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "rloo_vectorized",
    "opo",
    "remax",
    "gpg",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
)


def estimator(name: str, options: dict[str, Any] = OPTIONS) -> Callable[[Size], Call]:
    """Time an estimator, with the numbering of groups from `uid`."""

    def make(size: Size) -> Call:
        from ppo_lightning.algorithms import ADVANTAGES
        from ppo_lightning.algorithms.groups import group_ids
        from ppo_lightning.algorithms.tables import resolve

        entry, data = ADVANTAGES[name], fields(size)
        function = resolve(entry.path)
        given = {key: torch.from_numpy(data[key]) for key in entry.reads if key != "group"}
        given |= {key: options[key] for key in entry.options if key in options}
        if not entry.grouped:
            return lambda: function(**given)
        return lambda: function(**given, group=group_ids(data["uid"]))

    return make


def read_by(name: str, size: Size) -> list[torch.Tensor]:
    """Return the tensors that a case cannot do without reading; none where its time is not that of memory."""
    from ppo_lightning.algorithms import ADVANTAGES

    keys: tuple[str, ...] = ()
    if name.startswith("advantages: "):
        keys = ADVANTAGES[name.removeprefix("advantages: ").split(",")[0]].reads
    elif name == "metrics of the batch":
        keys = tuple(key for key in METRIC_KEYS if key not in ("prompts", "responses"))
    return [torch.from_numpy(fields(size)[key]) for key in keys if key != "group"]


def batch(size: Size, keys: tuple[str, ...]) -> Any:
    """Make a DataProto of some tensors and all columns."""
    from ppo_lightning.protocol.data_proto import DataProto

    tensors = {key: torch.from_numpy(fields(size)[key]) for key in keys}
    return DataProto.from_dict(tensors, dict(columns(size)))


def data_metrics(size: Size) -> Call:
    """Time the metrics of a step's batch."""
    from ppo_lightning.metrics.data import data_metrics as measure
    from ppo_lightning.metrics.values import MetricBook

    data = batch(size, METRIC_KEYS)

    def run() -> dict[str, float | None]:
        book = MetricBook()
        measure(data, book, use_critic=True)
        return book.compute()

    return run


METRIC_KEYS = (
    "token_level_scores",
    "token_level_rewards",
    "advantages",
    "returns",
    "values",
    "response_mask",
    "attention_mask",
    "prompts",
    "responses",
)


def validation_metrics(size: Size) -> Call:
    """Time the metrics of a validation."""
    from ppo_lightning.metrics.validation import validation_metrics as measure

    return lambda: measure(*validation(size))


def balancing(size: Size) -> Call:
    """Time spreading the rows over 8 ranks."""
    from ppo_lightning.parallel.balance import balance

    return lambda: balance(fields(size)["lengths"], 8)


def union(size: Size) -> Call:
    """Time joining prompts and rollout, two tensors and three columns of which are on both sides."""
    prompts = batch(size, ("prompts", "attention_mask"))
    rollout = batch(size, ("attention_mask", "responses", "response_mask", "old_log_probs"))
    return lambda: prompts.select().union(rollout)


def chunk(size: Size) -> Call:
    """Time cutting a batch into 8."""
    data = batch(size, METRIC_KEYS)
    return lambda: data.chunk(8)


def repeat(size: Size) -> Call:
    """Time repeating prompt rows n times; verl's rows share their dicts, ours own them."""
    prompts = Size(size.rows // size.rollouts, size.tokens, 1)
    data = batch(prompts, ("prompts",))
    return lambda: data.repeat(size.rollouts, interleave=True)


def repeat_strings(size: Size) -> Call:
    """Time the same without the column of dicts."""
    data = batch(Size(size.rows // size.rollouts, size.tokens, 1), ("prompts",))
    data.pop(non_tensor_batch_keys=["extra_info"])
    return lambda: data.repeat(size.rollouts, interleave=True)


CASES: dict[str, Callable[[Size], Call]] = {
    **{f"advantages: {name}": estimator(name) for name in ESTIMATORS},
    "advantages: gae, gamma 0.99, lam 0.95": estimator("gae", DISCOUNTED),
    "advantages: reinforce_plus_plus, gamma 0.99": estimator("reinforce_plus_plus", DISCOUNTED),
    "metrics of the batch": data_metrics,
    "metrics of a validation": validation_metrics,
    "balancing over 8 ranks": balancing,
    "union": union,
    "chunk(8)": chunk,
    "repeat(n)": repeat,
    "repeat(n), without dicts": repeat_strings,
}
