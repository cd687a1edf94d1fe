"""DataProto: every operation acts on both row layers alike and leaves the per-step layer alone (SPEC 1.1 to 1.4)."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from ppo_lightning.errors import DataError
from ppo_lightning.protocol.data_proto import DataProto


def make(rows=6):
    """Row i holds i in every layer, so that a row that falls apart is seen."""
    ids = torch.arange(rows)
    return DataProto.from_dict(
        {"row": ids, "tokens": ids[:, None] * 10 + torch.arange(3)},
        {"uid": [f"u{i}" for i in range(rows)], "extra_info": [{"row": i, "list": [i]} for i in range(rows)]},
        {"temperature": 1.0, "global_token_num": list(range(rows))},
    )


def rows_of(batch):
    """Return the row ids, after checking that all columns of both row layers tell the same ones."""
    ids = batch.batch["row"].tolist()
    assert batch.batch["tokens"][:, 1].tolist() == [10 * i + 1 for i in ids]
    assert batch.non_tensor_batch["uid"].tolist() == [f"u{i}" for i in ids]
    assert [info["row"] for info in batch.non_tensor_batch["extra_info"]] == ids
    assert [info["list"] for info in batch.non_tensor_batch["extra_info"]] == [[i] for i in ids]
    return ids


# ---- construction (1.1) ---------------------------------------------------------------------------------------------


def test_two_batch_dims_are_refused():
    with pytest.raises(DataError, match=r"exactly one batch dim, got batch_size \(2, 3\)"):
        DataProto(TensorDict({"a": torch.zeros(2, 3)}, batch_size=[2, 3]))


def test_no_batch_dim_is_refused():
    with pytest.raises(DataError, match=r"exactly one batch dim"):
        DataProto(TensorDict({"a": torch.zeros(2)}, batch_size=[]))


@pytest.mark.parametrize("column", [np.zeros(3), np.array(1.0), np.array([[1], [2], [3]])])
def test_column_of_another_length_is_refused(column):
    with pytest.raises(DataError, match=r"non_tensor_batch\['uid'\] must have as many rows as the batch \(2\)"):
        DataProto(TensorDict({"a": torch.zeros(2)}, batch_size=[2]), {"uid": column})


def test_column_that_is_a_list_is_refused():
    with pytest.raises(DataError, match=r"non_tensor_batch\['uid'\] must be a numpy array.*got list"):
        DataProto(None, {"uid": ["a", "b"]})


def test_columns_alone_must_agree():
    with pytest.raises(DataError, match=r"non_tensor_batch\['b'\] must have as many rows"):
        DataProto(None, {"a": np.zeros(2), "b": np.zeros(3)})


def test_key_in_both_row_layers_is_refused():
    with pytest.raises(DataError, match="'a' is both in batch and in non_tensor_batch"):
        DataProto.from_dict({"a": torch.zeros(2)}, {"a": ["x", "y"]})


def test_tensors_of_unequal_first_axis_are_refused():
    with pytest.raises(DataError, match=r"same first axis.*'a': \(2,\).*'b': \(3,\)"):
        DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(3)})


def test_damage_done_between_operations_is_seen_by_the_next():
    batch = make(4)
    batch.non_tensor_batch["uid"] = batch.non_tensor_batch["uid"][:3]
    for operation in (
        lambda: batch.select_idxs([0]),
        lambda: batch.chunk(2),
        lambda: batch.slice(0, 2),
        lambda: batch.repeat(2),
        lambda: batch.reorder([3, 2, 1, 0]),
        lambda: batch.union(make(4)),
        lambda: make(4).union(batch),
        lambda: DataProto.concat([make(4), batch]),
        lambda: batch.select(["row"]),
        lambda: batch.pop(["row"]),
        lambda: batch.fold(2),
        lambda: batch.to("cpu"),
        lambda: make(4).become(batch),
    ):
        with pytest.raises(DataError, match=r"non_tensor_batch\['uid'\]"):
            operation()


def test_lists_of_equal_length_stay_one_object_per_row():
    column = DataProto.from_dict({"a": torch.zeros(2)}, {"ids": [[1, 2], [3, 4]]}).non_tensor_batch["ids"]
    assert column.shape == (2,)
    assert column[1] == [3, 4]


def test_from_single_dict_sorts_into_layers():
    batch = DataProto.from_single_dict({"a": torch.ones(2), "uid": np.array(["x", "y"], dtype=object)}, {"t": 1})
    assert (list(batch.tensors()), list(batch.non_tensor_batch), batch.meta_info) == (["a"], ["uid"], {"t": 1})
    with pytest.raises(DataError, match="'b' must be a tensor or a numpy array, got list"):
        DataProto.from_single_dict({"b": [1, 2]})


def test_length_of_each_kind_of_batch():
    assert len(DataProto()) == 0
    assert len(DataProto(meta_info={"a": 1})) == 0
    assert len(DataProto.from_dict(non_tensors={"a": [1, 2, 3]})) == 3
    assert len(make(5)) == 5
    assert len(make(0)) == 0


# ---- rows (1.2, 1.3) ------------------------------------------------------------------------------------------------


def test_chunk_cuts_both_layers_at_the_same_boundaries():
    batch = make(6)
    chunks = batch.chunk(3)
    assert [rows_of(chunk) for chunk in chunks] == [[0, 1], [2, 3], [4, 5]]
    assert all(chunk.meta_info is batch.meta_info for chunk in chunks)


@pytest.mark.parametrize("chunks", [4, 0, 7])
def test_chunk_refuses_what_is_not_divisible(chunks):
    with pytest.raises(DataError, match=f"must be divisible by the number of chunks, got 6 rows, {chunks} chunks"):
        make(6).chunk(chunks)


def test_split_slices_repeatedly():
    assert [rows_of(part) for part in make(5).split(2)] == [[0, 1], [2, 3], [4]]
    assert make(0).split(2) == []
    with pytest.raises(DataError, match="split_size must be at least 1"):
        make(5).split(0)


@pytest.mark.parametrize(
    "selection",
    [
        [4, 0, 0],
        np.array([4, 0, 0]),
        torch.tensor([4, 0, 0]),
        [-1, -5, 0],
        np.array([4, 0, 0], dtype=np.int32),
    ],
)
def test_select_by_integers(selection):
    assert rows_of(make(5).select_idxs(selection)) == [4, 0, 0]
    assert rows_of(make(5)[selection]) == [4, 0, 0]


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_select_by_booleans(kind):
    assert rows_of(make(4).select_idxs(kind([True, False, False, True]))) == [0, 3]


def test_booleans_are_never_read_as_integers():
    # Read as integers, [True, False] would be rows 1 and 0.
    assert rows_of(make(2).select_idxs([True, False])) == [0]
    with pytest.raises(DataError, match="one boolean for each of 3 rows"):
        make(3).select_idxs([True, False])


def test_selecting_nothing():
    for nothing in ([], np.zeros(0, dtype=np.int64), [False] * 3):
        assert len(make(3).select_idxs(nothing)) == 0


@pytest.mark.parametrize("selection", [[3], [-4], [0.5], [[0, 1]]])
def test_selection_outside_or_of_another_kind_is_refused(selection):
    with pytest.raises(DataError, match="row"):
        make(3).select_idxs(selection)


@pytest.mark.parametrize(
    "cut", [(1, 4, None), (None, -1, None), (0, 99, None), (5, 1, -2), (None, None, 2), (3, 3, None)]
)
def test_slices_are_those_of_a_list(cut):
    expected = list(range(6))[slice(*cut)]
    assert rows_of(make(6).slice(*cut)) == expected
    assert rows_of(make(6)[slice(*cut)]) == expected


def test_single_row():
    item = make(4)[-1]
    assert item.batch["tokens"].tolist() == [30, 31, 32]
    assert (item.non_tensor_batch["uid"], item.meta_info["temperature"]) == ("u3", 1.0)
    with pytest.raises(IndexError):
        make(4)[4]
    assert [item.non_tensor_batch["uid"] for item in make(3)] == ["u0", "u1", "u2"]


def test_reorder_is_in_place_for_every_holder():
    batch = make(4)
    holder = batch
    assert batch.reorder(torch.tensor([2, 0, 3, 1])) is None
    assert rows_of(holder) == [2, 0, 3, 1]
    batch.reorder(np.argsort([2, 0, 3, 1]))
    assert rows_of(holder) == [0, 1, 2, 3]


@pytest.mark.parametrize("order", [[0, 0, 1], [0, 1], [0, 1, 3]])
def test_reorder_refuses_what_is_no_permutation(order):
    with pytest.raises(DataError):
        make(3).reorder(order)


def test_reorder_does_not_write_into_views():
    batch = make(4)
    view = batch.slice(0, 2)
    batch.reorder([3, 2, 1, 0])
    assert rows_of(view) == [0, 1]


def test_repeat_interleaved_and_tiled():
    assert rows_of(make(2).repeat(3)) == [0, 0, 0, 1, 1, 1]
    assert rows_of(make(2).repeat(3, interleave=False)) == [0, 1, 0, 1, 0, 1]
    assert rows_of(make(2).repeat(1)) == [0, 1]
    with pytest.raises(DataError, match="repeat_times must be at least 1"):
        make(2).repeat(0)


@pytest.mark.parametrize("interleave", [True, False])
def test_repeated_rows_own_their_objects(interleave):
    source = make(2)
    repeated = source.repeat(2, interleave=interleave)
    repeated.non_tensor_batch["extra_info"][0]["list"].append("mine")
    repeated.batch["tokens"][0, 0] = -1
    others = [*repeated.non_tensor_batch["extra_info"][1:], *source.non_tensor_batch["extra_info"]]
    assert all("mine" not in info["list"] for info in others)
    assert source.batch["tokens"][0, 0] == 0
    # The naive way shares one dict between the rows of a group.
    naive = np.repeat(source.non_tensor_batch["extra_info"], 2)
    naive[0]["row"] = "overwritten"
    assert naive[1]["row"] == "overwritten"


def test_row_selected_twice_owns_its_objects():
    selected = make(2).select_idxs([1, 1, 0])
    selected.non_tensor_batch["extra_info"][0]["row"] = "mine"
    assert selected.non_tensor_batch["extra_info"][1]["row"] == 1


def test_minibatches_cover_every_row_once():
    assert [rows_of(part) for part in make(4).minibatches(2)] == [[0, 1], [2, 3]]
    drawn = [rows_of(part) for part in make(6).minibatches(2, seed=3)]
    assert sorted(row for rows in drawn for row in rows) == list(range(6))
    assert drawn == [rows_of(part) for part in make(6).minibatches(2, seed=3)]
    assert drawn != [rows_of(part) for part in make(6).minibatches(2, seed=4)]
    with pytest.raises(DataError, match="6 rows must be divisible by the mini-batch size 4"):
        list(make(6).minibatches(4))


def test_concat_restores_what_was_cut():
    batch = make(6)
    joined = DataProto.concat(batch.chunk(3))
    assert rows_of(joined) == list(range(6))
    assert joined.meta_info is batch.meta_info


def test_concat_refuses_unequal_parts():
    with pytest.raises(DataError, match="at least one batch"):
        DataProto.concat([])
    with pytest.raises(DataError, match="same keys in every part"):
        DataProto.concat([make(2), make(2).select(["row"])])
    other = make(2)
    other.meta_info = {"temperature": 0.5}
    with pytest.raises(DataError, match=r"'temperature' of meta_info differs: left 1.0, right 0.5"):
        DataProto.concat([make(2), other])


def test_concat_joins_the_per_step_values_of_its_parts():
    parts = [DataProto.from_dict({"a": torch.ones(1)}, meta_info=meta) for meta in ({"x": 1}, {"x": 1, "y": 2})]
    joined = DataProto.concat(parts)
    assert joined.meta_info == {"x": 1, "y": 2}
    assert parts[0].meta_info == {"x": 1}


def test_fold_and_unfold():
    folded = make(6).fold(3)
    assert folded.batch["tokens"].shape == (3, 2, 3)
    assert folded.non_tensor_batch["uid"].tolist() == [["u0", "u1"], ["u2", "u3"], ["u4", "u5"]]
    assert rows_of(folded.unfold()) == list(range(6))
    with pytest.raises(DataError, match="divisible"):
        make(6).fold(4)
    with pytest.raises(DataError, match="unfold needs the same first two axes"):
        make(6).unfold()


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_select_keeps_the_named_keys_of_each_layer():
    chosen = make(3).select(["row"], ["uid"], ["temperature"])
    assert (chosen.row_keys(), chosen.meta_info) == (["row", "uid"], {"temperature": 1.0})
    assert make(3).select(["row"]).row_keys() == ["row", "uid", "extra_info"]
    assert make(3).select([], []).row_keys() == []
    with pytest.raises(DataError, match=r"batch must hold \['values'\], but has only \['row', 'tokens'\]"):
        make(3).select(["values"])


def test_selecting_keys_does_not_tie_the_batches():
    batch = make(3)
    batch.select().union(DataProto.from_dict({"new": torch.zeros(3)}, {"other": [1, 2, 3]}))
    assert "new" not in batch
    assert "other" not in batch


def test_pop_moves_keys_and_is_all_or_nothing():
    batch = make(3)
    with pytest.raises(DataError, match=r"meta_info must hold \['missing'\]"):
        batch.pop(["row"], ["uid"], ["missing"])
    assert "row" in batch
    popped = batch.pop(["row"], ["uid"], ["temperature"])
    assert (popped.row_keys(), popped.meta_info) == (["row", "uid"], {"temperature": 1.0})
    assert (batch.row_keys(), list(batch.meta_info)) == (["tokens", "extra_info"], ["global_token_num"])
    assert len(batch) == len(popped) == 3


def test_rename_in_either_layer():
    batch = make(2)
    assert batch.rename(["row", "uid"], ["id", "name"]) is batch
    assert sorted(batch.row_keys()) == ["extra_info", "id", "name", "tokens"]
    assert batch.rename("id", "row").batch["row"].tolist() == [0, 1]
    for old, new in ((["row"], ["tokens"]), (["row"], ["name"]), (["gone"], ["x"]), (["row", "tokens"], ["x"])):
        with pytest.raises(DataError):
            batch.rename(old, new)
    assert sorted(batch.row_keys()) == ["extra_info", "name", "row", "tokens"]


# ---- whole batches --------------------------------------------------------------------------------------------------


def test_become_is_seen_by_every_holder():
    batch, other = make(3), make(5)
    holder = batch
    assert batch.become(other) is batch
    assert rows_of(holder) == list(range(5))
    assert holder.meta_info is other.meta_info


def test_to_moves_in_place():
    batch = make(3)
    assert batch.to("meta") is batch
    assert batch.batch["tokens"].device.type == "meta"


def test_operations_on_rows_hand_on_the_same_per_step_values():
    batch = make(4)
    results = [
        batch.slice(0, 2),
        batch.select_idxs([0]),
        batch.repeat(2),
        batch.fold(2),
        batch[1:],
        *batch.split(3),
        *batch.minibatches(2),
        *batch.minibatches(2, seed=1),
    ]
    assert all(result.meta_info is batch.meta_info for result in results)
    assert batch.meta_info == {"temperature": 1.0, "global_token_num": [0, 1, 2, 3]}
