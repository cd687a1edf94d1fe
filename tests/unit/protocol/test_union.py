"""Union merges in place and never overwrites (SPEC 1.4)."""

import numpy as np
import pytest
import torch

from ppo_lightning.errors import DataError
from ppo_lightning.protocol.columns import as_column, deep_equal
from ppo_lightning.protocol.data_proto import DataProto

NAN = float("nan")


def proto(tensors=None, columns=None, meta=None):
    return DataProto.from_dict(tensors, columns, meta)


def test_union_is_in_place_and_returns_the_left_operand():
    left = proto({"a": torch.zeros(2)}, {"x": ["p", "q"]}, {"t": 1})
    holder = left
    right = proto({"b": torch.ones(2)}, {"y": [1, 2]}, {"u": 2})
    assert left.union(right) is left
    assert sorted(holder.row_keys()) == ["a", "b", "x", "y"]
    assert holder.meta_info == {"t": 1, "u": 2}
    assert right.row_keys() == ["b", "y"]
    assert right.meta_info == {"u": 2}


def test_union_into_an_empty_batch_and_with_an_empty_one():
    left = proto(meta={"t": 1})
    left.union(proto({"a": torch.ones(3)}, {"x": [1, 2, 3]}))
    assert len(left) == 3
    assert len(left.union(DataProto())) == 3


def test_union_does_not_tie_the_right_operand():
    left, right = DataProto(), proto({"a": torch.ones(2)})
    left.union(right).union(proto({"b": torch.ones(2)}))
    assert right.row_keys() == ["a"]


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([[1.0, NAN], [NAN, 2.0]]),
        torch.tensor([1, 2]),
        torch.tensor([True, False]),
        torch.tensor([NAN, 1.0], dtype=torch.bfloat16),
    ],
)
def test_equal_tensors_pass_also_with_nan_at_the_same_places(value):
    left = proto({"a": value})
    assert left.union(proto({"a": value.clone()})) is left
    if value.is_floating_point():  # the naive comparison fails where NaN meets NaN
        assert not torch.equal(value, value.clone())


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 5.0]], r"row 1 \(first at index \[1, 1\]\): left 4.0, right 5.0"),
        ([[1.0, NAN], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]], r"row 0 \(first at index \[0, 1\]\): left nan, right 2.0"),
        ([1, 2], [0, 0], r"rows 0, 1: left 1, right 0"),
        ([1, 2], [1.0, 2.0], r"is torch.int64 \(2,\) on the left and torch.float32 \(2,\) on the right"),
        ([1, 2], [[1], [2]], r"is torch.int64 \(2,\) on the left and torch.int64 \(2, 1\) on the right"),
    ],
)
def test_unequal_tensors_name_key_layer_rows_and_values(ours, theirs, text):
    with pytest.raises(DataError, match=rf"key 'a' of batch .*{text}.*pop the key"):
        proto({"a": torch.tensor(ours)}).union(proto({"a": torch.tensor(theirs)}))


@pytest.mark.parametrize(
    "values",
    [
        [{"a": [1, {"b": NAN}]}, {"c": np.array([1.0, NAN])}],
        ["x", "y"],
        [NAN, 1.0],
        [None, [1, 2]],
        [np.array([1, 2]), np.array([[3]])],
        [torch.tensor([1.0, NAN]), torch.tensor(2)],
    ],
)
def test_equal_columns_pass_deeply(values):
    import copy

    left = proto({"a": torch.zeros(2)}, {"x": values})
    assert left.union(proto({"a": torch.zeros(2)}, {"x": copy.deepcopy(values)})) is left


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([{"a": 1}], [{"a": 2}]),
        ([{"a": 1}], [{"b": 1}]),
        ([{"a": 1}], [{"a": 1, "b": 1}]),
        ([[1, 2]], [[1, 3]]),
        ([[1, 2]], [[1, 2, 3]]),
        ([[1, 2]], [(1, 2)]),
        ([None], [0]),
        ([NAN], [0.0]),
        ([np.array([5])], [5]),
        ([np.array([5])], [np.array([[5]])]),
        ([np.array([1.0, NAN])], [np.array([NAN, 1.0])]),
        ([torch.tensor([5])], [5]),
        ([torch.tensor([5])], [torch.tensor([6])]),
        (["1"], [1]),
    ],
)
def test_unequal_columns_name_key_layer_row_and_values(ours, theirs):
    same = {"same": True}
    with pytest.raises(
        DataError, match=r"key 'x' of non_tensor_batch differs at row 1: left .*, right .*: union never"
    ):
        proto(None, {"x": [same, *ours]}).union(proto(None, {"x": [dict(same), *theirs]}))


def test_columns_of_text_compare_across_dtypes():
    left = DataProto(None, {"uid": np.array(["a", "b"])})
    assert left.union(proto(None, {"uid": ["a", "b"]})) is left
    with pytest.raises(DataError, match="row 1: left 'b', right 'c'"):
        left.union(proto(None, {"uid": ["a", "c"]}))


def test_numeric_columns_compare_with_nan_and_name_rows():
    left = DataProto(None, {"acc": np.array([[1.0, NAN], [2.0, 3.0]])})
    left.union(DataProto(None, {"acc": np.array([[1.0, NAN], [2.0, 3.0]])}))
    with pytest.raises(DataError, match="'acc' of non_tensor_batch differs at row 1"):
        left.union(DataProto(None, {"acc": np.array([[1.0, NAN], [2.0, 4.0]])}))
    with pytest.raises(DataError, match=r"has shape \(2, 2\) on the left and \(2,\) on the right"):
        left.union(DataProto(None, {"acc": np.array([1.0, 2.0])}))


def test_many_rows_are_counted_and_long_values_cut():
    with pytest.raises(DataError, match=r"rows 0, 1, 2, 3, 4, \.\.\. \(9 rows\)") as caught:
        proto(None, {"x": ["long" * 999] * 9}).union(proto(None, {"x": ["other" * 999] * 9}))
    assert len(str(caught.value)) < 400


def test_meta_is_compared_by_equality():
    left = proto({"a": torch.zeros(1)}, meta={"t": 1, "n": [1, 2], "array": np.arange(3)})
    left.union(proto({"a": torch.zeros(1)}, meta={"t": 1.0, "n": [1, 2], "array": np.arange(3)}))
    with pytest.raises(DataError, match=r"key 'n' of meta_info differs: left \[1, 2\], right \[1, 3\]"):
        left.union(proto(meta={"n": [1, 3]}))
    with pytest.raises(DataError, match="key 'array' of meta_info differs"):
        left.union(proto(meta={"array": np.arange(1, 4)}))


def test_union_of_unequal_length_is_refused():
    with pytest.raises(DataError, match="same rows on both sides, got 2 and 3"):
        proto({"a": torch.zeros(2)}).union(proto({"b": torch.zeros(3)}))
    with pytest.raises(DataError, match="same rows on both sides, got 2 and 3"):
        proto({"a": torch.zeros(2)}).union(proto(None, {"b": [1, 2, 3]}))


def test_key_that_changes_layer_is_refused():
    with pytest.raises(DataError, match=r"keys \['a'\] are in batch on one side and in non_tensor_batch on the other"):
        proto({"a": torch.zeros(2)}).union(proto(None, {"a": [1, 2]}))
    with pytest.raises(DataError, match=r"keys \['a'\] are in batch"):
        proto(None, {"a": [1, 2]}).union(proto({"a": torch.zeros(2)}))


@pytest.mark.parametrize(
    "right",
    [
        proto({"a": torch.ones(2), "new": torch.ones(2)}),
        proto({"new": torch.ones(2)}, {"x": [9, 9], "more": [1, 2]}),
        proto({"new": torch.ones(2)}, {"more": [1, 2]}, {"t": 2, "u": 3}),
    ],
)
def test_failed_union_leaves_the_left_operand_as_it_was(right):
    left = proto({"a": torch.zeros(2)}, {"x": [1, 2]}, {"t": 1})
    with pytest.raises(DataError):
        left.union(right)
    assert left.row_keys() == ["a", "x"]
    assert left.meta_info == {"t": 1}


def test_replacing_needs_a_pop():
    left = proto({"a": torch.zeros(2)})
    left.pop(["a"])
    assert left.union(proto({"a": torch.ones(2)})).batch["a"].tolist() == [1.0, 1.0]


def test_deep_equal_of_object_that_differs_from_itself_only_if_nan():
    assert deep_equal(np.float64("nan"), NAN)
    assert not deep_equal(np.datetime64("2026-01-01"), np.datetime64("NaT"))
    assert deep_equal(as_column([{"a": (1, NAN)}]), as_column([{"a": (1, NAN)}]))
