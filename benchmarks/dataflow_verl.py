"""verl's side of the data-flow benchmark: a worker that the benchmark starts in the oracle's environment.

It reads one JSON request per line, {"case": name}, and answers {"seconds": s} for one call, or {"error": text}. With
"save", a file name, it also writes the advantages there.
"""

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from dataflow_inputs import Size, clock, columns, fields, validation
from dataflow_ours import DISCOUNTED, ESTIMATORS, METRIC_KEYS, OPTIONS

Call = Callable[[], Any]
NAMES = {
    "gae": "gae_advantage_return",
    "optimal_token_baseline": "optimal_token_baseline_advantage",
    "tir_optimal_token_baseline": "multi_turn_optimal_token_baseline_advantage",
}


class Config(SimpleNamespace):
    """What estimators ask of verl's algorithm section."""

    def get(self, key: str, default: object = None) -> object:
        """Return an option."""
        return getattr(self, key, default)


def estimator(name: str, options: dict[str, Any] = OPTIONS) -> Callable[[Size], Call]:
    """Time an estimator as verl's trainer calls it."""

    def make(size: Size) -> Call:
        from verl.trainer.ppo import core_algos

        data = fields(size)
        function = getattr(core_algos, "compute_" + NAMES.get(name, f"{name}_outcome_advantage"))
        tensors = {key: torch.from_numpy(data[key]) for key in ("token_level_rewards", "response_mask")}
        if name == "gae":
            values = torch.from_numpy(data["values"])
            return lambda: function(**tensors, values=values, gamma=options["gamma"], lam=options["lam"])
        config = Config(gamma=options["gamma"], gdpo_reward_keys=["a", "b"], norm_adv_by_std_in_grpo=True)
        given = {**tensors, "index": data["uid"], "config": config}
        if "token_baseline" in name:
            given |= {key: torch.from_numpy(data[key]) for key in ("old_log_probs", "sum_pi_squared")}
        if name == "remax":
            given["reward_baselines"] = torch.from_numpy(data["reward_baselines"])
        if name == "gdpo":
            given["non_tensor_batch"] = {"a": data["reward_parts"][:, 0], "b": data["reward_parts"][:, 1]}
            given["batch"] = {key: torch.from_numpy(data[key]) for key in ("prompts", "attention_mask")}
        return lambda: function(**given)

    return make


def batch(size: Size, keys: tuple[str, ...]) -> Any:
    """Make a DataProto of some tensors and all columns."""
    from verl.protocol import DataProto

    tensors = {key: torch.from_numpy(fields(size)[key]) for key in keys}
    return DataProto.from_dict(tensors, dict(columns(size)))


def data_metrics(size: Size) -> Call:
    """Time the metrics of a step's batch."""
    from verl.trainer.ppo.metric_utils import compute_data_metrics

    data = batch(size, METRIC_KEYS)
    return lambda: compute_data_metrics(data, use_critic=True)


def validation_metrics(size: Size) -> Call:
    """Time the metrics of a validation."""
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    return lambda: process_validation_metrics(*validation(size))


def balancing(size: Size) -> Call:
    """Time spreading the rows over 8 ranks."""
    from verl.utils import seqlen_balancing

    def run() -> list[list[int]]:
        workload = seqlen_balancing.calculate_workload(torch.from_numpy(fields(size)["lengths"]))
        return seqlen_balancing.get_seqlen_balanced_partitions(workload, k_partitions=8, equal_size=True)

    return run


def union(size: Size) -> Call:
    """Time joining prompts and rollout."""
    prompts = batch(size, ("prompts", "attention_mask"))
    rollout = batch(size, ("attention_mask", "responses", "response_mask", "old_log_probs"))
    return lambda: prompts.select().union(rollout)


def chunk(size: Size) -> Call:
    """Time cutting a batch into 8."""
    data = batch(size, METRIC_KEYS)
    return lambda: data.chunk(8)


def repeat(size: Size) -> Call:
    """Time repeating prompt rows n times."""
    data = batch(Size(size.rows // size.rollouts, size.tokens, 1), ("prompts",))
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


def answer(request: dict[str, str], calls: dict[str, Call], size: Size) -> dict[str, Any]:
    """Time one call."""
    name = request["case"]
    try:
        if name not in calls:
            calls.clear()
            calls[name] = CASES[name](size)
        now = clock(torch.get_num_threads())
        start = now()
        result = calls[name]()
        seconds = now() - start
    except (ImportError, KeyError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    if "save" in request:
        np.save(request["save"], result[0].numpy())
    return {"seconds": seconds}


if __name__ == "__main__":
    threads, *shape = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    replies, sys.stdout = sys.stdout, sys.stderr
    shared: dict[str, Call] = {}
    size = Size(*shape)
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line), shared, size)) + "\n")
        replies.flush()
