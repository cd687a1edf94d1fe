"""Write golden/protocol.npz: what verl's DataProto and its balancing return. Runs in the oracle."""

from pathlib import Path

import inputs_protocol as inputs
import numpy as np
import torch
from tensordict import TensorDict
from verl.protocol import DataProto, fold_batch_dim, pad_dataproto_to_divisor
from verl.utils import seqlen_balancing


def make(tensors, columns, meta):
    return DataProto.from_dict(tensors=tensors, non_tensors=columns, meta_info=meta)


def raises(action):
    """Tell whether verl refuses, as 1 or 0."""
    try:
        action()
    except (AssertionError, AttributeError, ValueError, RuntimeError):
        return 1
    return 0


def batches():
    """Return the fingerprint of every operation's result, (cases,) each."""
    found = {}
    for seed in range(inputs.CASES):
        for name, result in inputs.operations(seed, make, pad_dataproto_to_divisor, torch.from_numpy).items():
            found.setdefault(name, []).append(inputs.fingerprint(inputs.flat(result)))
    return {f"operation/{name}": np.array(values, dtype=np.uint64) for name, values in found.items()}


def balancing():
    """Return workloads, the spread of verl's partitions, and its statistics."""
    found, statistics = {}, []
    spreads = []
    for case in range(len(inputs.BALANCE_CASES)):
        lengths, ranks = inputs.lengths(case)
        costs = seqlen_balancing.calculate_workload(torch.from_numpy(lengths))
        parts = seqlen_balancing.get_seqlen_balanced_partitions(costs.tolist(), ranks, equal_size=True)
        sums = [int(costs[part].sum()) for part in parts]
        spreads.append(max(sums) - min(sums))
        if case < inputs.STATISTICS_CASES:
            values = seqlen_balancing.log_seqlen_unbalance(lengths.tolist(), parts, "global_seqlen")
            statistics.append([values[key] for key in sorted(values)])
            found[f"balance/workload/{case}"] = costs.numpy()
            found[f"balance/order/{case}"] = np.array([row for part in parts for row in part])
    return {**found, "balance/spread": np.array(spreads), "balance/statistics": np.array(statistics)}


def one(columns=None, **tensors):
    """Return a batch of the given columns and tensors; tensors are never absent, for verl's union needs some."""
    tensors = tensors or {"row": torch.arange(len(next(iter(columns.values()))))}
    return DataProto(TensorDict(tensors, batch_size=[len(next(iter(tensors.values())))]), columns or {})


def union_differences():
    nan = torch.tensor([1.0, float("nan")])
    nested = [one({"x": inputs.column([{"a": float("nan")}])}) for _ in range(2)]
    short = one(b=torch.zeros(2))
    short.non_tensor_batch["x"] = inputs.column([1, 2, 3])
    half = one({"x": inputs.column([1, 2])}, a=torch.zeros(2))
    conflict = one({"x": inputs.column([8, 9])}, new=torch.ones(2))
    bare = [DataProto(None, {key: inputs.column([1])}) for key in "xy"]
    return {
        "nan_tensor_refused": raises(lambda: one(a=nan).union(one(a=nan.clone()))),
        "nan_in_dict_refused": raises(lambda: nested[0].union(nested[1])),
        "short_column_refused": raises(lambda: one(a=torch.zeros(2)).union(short)),
        "text_dtypes_refused": raises(lambda: one({"x": np.array(["a"])}).union(one({"x": inputs.column(["a"])}))),
        "conflict_refused": raises(lambda: half.union(conflict)),
        "half_merged": int("new" in half.batch.keys()),  # noqa: SIM118
        "columns_alone_refused": raises(lambda: bare[0].union(bare[1])),
    }


def row_differences():
    batch = one({"x": inputs.column([{"a": 1}, {"a": 2}])}, a=torch.arange(2))
    repeated = batch.repeat(2).non_tensor_batch["x"]
    selected = batch.select_idxs([0, 0]).non_tensor_batch["x"]
    padded, _ = pad_dataproto_to_divisor(one(response_mask=torch.ones(2, 1)), 3)
    folded = one({"x": inputs.column([1, 2, 3, 4])}, a=torch.arange(4))
    fold_batch_dim(folded, 2)
    return {
        "repeated_rows_share": int(repeated[0] is repeated[1]),
        "selected_rows_share": int(selected[0] is selected[1]),
        "padding_marked": int("is_padding" in padded.batch.keys()),  # noqa: SIM118
        "padding_weight": int(padded.batch["response_mask"][2, 0]),
        "reorder_twice_refused": raises(lambda: batch.reorder(torch.tensor([0, 0]))),
        "fold_changes_source": int(folded.non_tensor_batch["x"].shape != (4,)),
        "metrics_of_parts": len(
            DataProto.concat([DataProto(meta_info={"metrics": {"a": 1}})] * 2).meta_info["metrics"]["a"]
        ),
    }


def micro_batch_differences():
    """Fill a budget of 16 with rows of 1 + 6 and 4 + 4 tokens, and find the area that a padded forward pass has."""
    prompts, responses = np.array([1, 4]), np.array([6, 4])
    mask = torch.zeros(2, 10, dtype=torch.int64)
    for row in range(2):
        mask[row, 4 - prompts[row] : 4 + responses[row]] = 1
    batch = TensorDict({"input_ids": mask, "attention_mask": mask}, batch_size=[2])
    _, rows = seqlen_balancing.rearrange_micro_batches(batch, max_token_len=16)
    return {"micro_batch_area": max(len(part) * int(prompts[part].max() + responses[part].max()) for part in rows)}


def minibatch_differences():
    """Balance a whole batch over 2 and 4 ranks and let each cut its rows into 4: are the mini-batches the same?"""
    lengths, _ = inputs.lengths(0)
    costs = seqlen_balancing.calculate_workload(torch.from_numpy(lengths)).tolist()
    found = []
    for ranks in (2, 4):
        parts = seqlen_balancing.get_seqlen_balanced_partitions(costs, ranks, equal_size=True)
        local = np.array(parts).reshape(ranks, 4, -1)
        found.append([sorted(local[:, place].ravel().tolist()) for place in range(4)])
    return {"minibatches_depend_on_ranks": int(found[0] != found[1])}


def main():
    facts = {**union_differences(), **row_differences(), **micro_batch_differences(), **minibatch_differences()}
    arrays = {**batches(), **balancing(), **{f"verl/{key}": np.array(value) for key, value in facts.items()}}
    path = Path(__file__).parent / "golden" / "protocol.npz"
    np.savez_compressed(path, digest=inputs.digest(), **arrays)
    print(path.name, path.stat().st_size, "bytes", facts)  # noqa: T201


if __name__ == "__main__":
    main()
