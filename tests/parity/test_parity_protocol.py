"""DataProto's operations and the balancing of sequence lengths against verl's on the same batches."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ppo_lightning.errors import DataError
from ppo_lightning.parallel.balance import balance, karmarkar_karp, seqlen_statistics, workload
from ppo_lightning.parallel.micro_batches import by_tokens
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import pad_to_divisor

sys.path.insert(0, str(Path(__file__).parent))
import inputs_protocol as inputs  # the folder is not a package: the oracle runs the same file

GOLDEN = np.load(Path(__file__).parent / "golden" / "protocol.npz")


@functools.cache
def fingerprints():
    """Return {operation: fingerprints of our results, one per case}."""
    found = {}
    for seed in range(inputs.CASES):
        results = inputs.operations(seed, DataProto.from_dict, pad_to_divisor, torch.from_numpy)
        for name, result in results.items():
            found.setdefault(name, []).append(inputs.fingerprint(inputs.flat(result)))
    return found


def compare_operation(name):
    """Count the cases whose three layers differ anywhere."""
    ours, theirs = np.array(fingerprints()[name]), GOLDEN[f"operation/{name}"]
    return len(theirs), float((ours != theirs).sum())


def compare_workload():
    differences = [
        np.abs(workload(inputs.lengths(case)[0]) - GOLDEN[f"balance/workload/{case}"]).max()
        for case in range(inputs.STATISTICS_CASES)
    ]
    return len(differences), float(max(differences))


def compare_spread():
    """Return by which share of verl's spread ours is larger, 0 if nowhere."""
    excess = []
    for case, theirs in enumerate(GOLDEN["balance/spread"].tolist()):
        lengths, ranks = inputs.lengths(case)
        costs = workload(lengths)
        sums = [int(costs[part].sum()) for part in karmarkar_karp(costs, ranks)]
        excess.append(max(0.0, (max(sums) - min(sums) - theirs) / max(theirs, 1)))
    return len(excess), max(excess)


def compare_statistics():
    differences = []
    for case in range(inputs.STATISTICS_CASES):
        lengths, ranks = inputs.lengths(case)
        balanced = lengths[GOLDEN[f"balance/order/{case}"]]
        ours = seqlen_statistics(*(tokens.reshape(ranks, -1).sum(1) for tokens in (lengths, balanced)))
        values = np.array([ours[key] for key in sorted(ours)])
        differences.append(np.abs(values - GOLDEN["balance/statistics"][case]).max())
    return len(differences), float(max(differences))


def _operation(ours, theirs, name):
    return (f"protocol.{ours}", f"protocol.{theirs}", functools.partial(compare_operation, name))


# (our function, verl's function, callable that returns (number of cases, largest difference))
COMPARISONS = [
    _operation("data_proto.DataProto.chunk", "DataProto.chunk", "chunk"),
    _operation("data_proto.DataProto.split", "DataProto.split", "split"),
    _operation("data_proto.DataProto.repeat", "DataProto.repeat(interleave=True)", "repeat_interleaved"),
    _operation("data_proto.DataProto.repeat", "DataProto.repeat(interleave=False)", "repeat_tiled"),
    _operation("data_proto.DataProto.select_idxs", "DataProto.select_idxs", "select_idxs"),
    _operation("data_proto.DataProto.slice", "DataProto.slice", "slice"),
    _operation("data_proto.DataProto.reorder", "DataProto.reorder", "reorder"),
    _operation("data_proto.DataProto.concat", "DataProto.concat", "concat"),
    _operation("data_proto.DataProto.union", "DataProto.union", "union"),
    _operation("data_proto.DataProto.pop", "DataProto.pop", "pop"),
    _operation("data_proto.DataProto.select", "DataProto.select", "select"),
    _operation("padding.pad_to_divisor", "pad_dataproto_to_divisor", "pad_to_divisor"),
    ("parallel.balance.workload", "seqlen_balancing.calculate_workload", compare_workload),
    ("parallel.balance.karmarkar_karp", "seqlen_balancing.get_seqlen_balanced_partitions", compare_spread),
    ("parallel.balance.seqlen_statistics", "seqlen_balancing.log_seqlen_unbalance", compare_statistics),
]

UNION, ROWS, PADDING = "protocol.data_proto.DataProto.union", "protocol.data_proto.DataProto", "protocol.padding"

# (our function, what verl does, what ours does, why)
DIFFERENCES = [
    (
        UNION,
        "equal tensors with NaN at the same places are refused",
        "they are equal",
        "a repeated value is no conflict",
    ),
    (UNION, "NaN inside a dict of an object column is refused", "compared deeply", "the same"),
    (
        UNION,
        "a column of the wrong length is accepted",
        "an error that names the key",
        "rows would fall apart silently",
    ),
    (
        UNION,
        "the same texts as object and as str columns are refused",
        "equal",
        "values count, not how they are stored",
    ),
    (
        UNION,
        "a conflict leaves the left operand half merged",
        "nothing is merged",
        "an error must not change the batch",
    ),
    (UNION, "batches without tensors raise AttributeError", "they merge", "columns alone are a batch too"),
    (
        f"{ROWS}.repeat",
        "repeated rows share one object",
        "each row owns its objects",
        "one row's reward would edit another's",
    ),
    (f"{ROWS}.select_idxs", "a row selected twice shares its objects", "each row owns its objects", "the same"),
    (f"{ROWS}.reorder", "any indices are accepted", "only a permutation is", "an in-place reorder must not lose rows"),
    (f"{ROWS}.fold", "folding reshapes the columns of its source too", "the source stays", "its tensors stay as well"),
    (
        f"{ROWS}.concat",
        "`metrics` of the parts are joined into lists",
        "per-step values must be equal",
        "metrics travel apart",
    ),
    (
        f"{PADDING}.pad_to_divisor",
        "padding rows look like any other, weight included",
        "marked in is_padding, response_mask 0",
        "no metric, group or loss may count them",
    ),
    (
        "parallel.micro_batches.by_tokens",
        "the budget counts valid tokens",
        "it counts rows x trimmed width",
        "without packing the padding is computed too",
    ),
    (
        "parallel.balance.balance",
        "by default the whole batch is balanced, then cut into mini-batches",
        "balanced within mini-batches",
        "what an optimizer step sees must not depend on the number of ranks",
    ),
]


def verl(fact):
    """Return what verl was seen to do."""
    return int(GOLDEN[f"verl/{fact}"])


def test_golden_values_belong_to_these_inputs():
    assert str(GOLDEN["digest"]) == inputs.digest()


@pytest.mark.parametrize(("ours", "theirs", "compare"), COMPARISONS, ids=[f"{a}~{b}" for a, b, _ in COMPARISONS])
def test_parity(ours, theirs, compare):
    cases, largest = compare()
    assert cases >= inputs.STATISTICS_CASES
    assert largest <= 1e-6


def test_fingerprints_see_one_value():
    name, case = "repeat_tiled", 3
    results = inputs.operations(case, DataProto.from_dict, pad_to_divisor, torch.from_numpy)[name]
    assert inputs.fingerprint(inputs.flat(results)) == GOLDEN[f"operation/{name}"][case]
    results[0].batch["tokens"][0, 0] += 1
    assert inputs.fingerprint(inputs.flat(results)) != GOLDEN[f"operation/{name}"][case]


def proto(tensors=None, **columns):
    return DataProto.from_dict(tensors, columns)


def test_difference_01_equal_nan_tensors():
    assert verl("nan_tensor_refused")
    value = torch.tensor([1.0, float("nan")])
    proto({"a": value}).union(proto({"a": value.clone()}))


def test_difference_02_nan_in_a_dict():
    assert verl("nan_in_dict_refused")
    proto(x=[{"a": float("nan")}]).union(proto(x=[{"a": float("nan")}]))


def test_difference_03_column_of_the_wrong_length():
    assert not verl("short_column_refused")
    short = proto({"b": torch.zeros(2)})
    short.non_tensor_batch["x"] = inputs.column([1, 2, 3])
    with pytest.raises(DataError, match="'x'"):
        proto({"a": torch.zeros(2)}).union(short)


def test_difference_04_texts_of_two_dtypes():
    assert verl("text_dtypes_refused")
    proto(x=np.array(["a"])).union(proto(x=["a"]))


def test_difference_05_conflict_merges_nothing():
    assert verl("conflict_refused")
    assert verl("half_merged")
    left = proto({"a": torch.zeros(2)}, x=[1, 2])
    with pytest.raises(DataError, match="'x'"):
        left.union(proto({"new": torch.ones(2)}, x=[8, 9]))
    assert "new" not in left


def test_difference_06_columns_alone():
    assert verl("columns_alone_refused")
    assert proto(x=[1]).union(proto(y=[1])).row_keys() == ["x", "y"]


def test_difference_07_repeated_rows_own_their_objects():
    assert verl("repeated_rows_share")
    repeated = proto(x=[{"a": 1}, {"a": 2}]).repeat(2).non_tensor_batch["x"]
    assert repeated[0] == repeated[1]
    assert repeated[0] is not repeated[1]


def test_difference_08_selected_rows_own_their_objects():
    assert verl("selected_rows_share")
    selected = proto(x=[{"a": 1}, {"a": 2}]).select_idxs([0, 0]).non_tensor_batch["x"]
    assert selected[0] == selected[1]
    assert selected[0] is not selected[1]


def test_difference_09_reorder_wants_a_permutation():
    assert not verl("reorder_twice_refused")
    with pytest.raises(DataError, match="exactly once"):
        proto({"a": torch.arange(2)}).reorder(torch.tensor([0, 0]))


def test_difference_10_fold_leaves_its_source():
    assert verl("fold_changes_source")
    source = proto({"a": torch.arange(4)}, x=[1, 2, 3, 4])
    assert source.fold(2).non_tensor_batch["x"].shape == (2, 2)
    assert source.non_tensor_batch["x"].shape == (4,)


def test_difference_11_metrics_are_not_per_step_values():
    assert verl("metrics_of_parts") == 2
    parts = [DataProto(meta_info={"metrics": {"a": value}}) for value in (1, 2)]
    with pytest.raises(DataError, match="'metrics' of meta_info differs"):
        DataProto.concat(parts)


def test_difference_12_padding_is_marked_and_weighs_nothing():
    assert not verl("padding_marked")
    assert verl("padding_weight") == 1
    padded, _ = pad_to_divisor(proto({"response_mask": torch.ones(2, 1, dtype=torch.int64)}), 3)
    assert padded.batch["is_padding"].tolist() == [False, False, True]
    assert padded.batch["response_mask"].tolist() == [[1], [1], [0]]


def test_difference_13_budget_counts_what_is_computed():
    prompts, responses = np.array([1, 4]), np.array([6, 4])
    assert verl("micro_batch_area") == 20
    widths = prompts + responses  # a row's prompt and response are moved together before the forward
    areas = [len(rows) * widths[rows].max() for rows in by_tokens(prompts, responses, 16)]
    assert max(areas) <= 16


def test_difference_14_minibatches_do_not_depend_on_ranks():
    assert verl("minibatches_depend_on_ranks")
    lengths, _ = inputs.lengths(0)
    found = []
    for ranks in (2, 4):
        local = balance(lengths, ranks, 16).order.reshape(ranks, 4, -1)
        found.append([sorted(local[:, place].ravel().tolist()) for place in range(4)])
    assert found[0] == found[1]
