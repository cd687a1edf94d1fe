"""Batches in files: what is saved comes back exactly, what cannot is refused, and nothing is ever unpickled."""

import datetime
import math
import pickle

import numpy as np
import pytest
import torch

from ppo_lightning.errors import DataError
from ppo_lightning.protocol.data_proto import DataProto


def test_round_trip(tmp_path):
    tokens = torch.arange(12).view(3, 4)
    batch = DataProto.from_dict(
        {
            "int": tokens,
            "view": tokens[:, :2],  # shares memory with `int` and is not contiguous
            "same": tokens,
            "bf16": torch.tensor([[1.5], [math.nan], [-math.inf]], dtype=torch.bfloat16),
            "bool": torch.tensor([True, False, True]),
        },
        {
            "uid": ["a", "ü", ""],
            "extra_info": [{"a": [1, 2.5, None, {"b": True}]}, {}, None],
            "ids": [[1, 2], [3, 4], [5, 6]],
            "number": np.array([[1.0, math.nan], [0.1, 2.0], [3.0, 4.0]]),
            "text": np.array(["x", "yy", "zzz"]),
            "folded": np.array([[[1], {"k": 2}], ["c", None], [4, 5.0]], dtype=object)[:, :2],
        },
        {"temperature": 0.7, "global_token_num": [1, 2, 3], "nested": {"a": None}},
    )
    batch.save(tmp_path / "batch.safetensors")
    loaded = DataProto.load(str(tmp_path / "batch.safetensors"))
    assert loaded.union(batch) is loaded  # equal in every layer, NaN included
    assert set(loaded.row_keys()) == set(batch.row_keys())
    assert {key: value.dtype for key, value in loaded.tensors().items()} == {
        k: v.dtype for k, v in batch.tensors().items()
    }
    assert {k: (v.dtype, v.shape) for k, v in loaded.non_tensor_batch.items()} == {
        k: (v.dtype, v.shape) for k, v in batch.non_tensor_batch.items()
    }
    assert [path.name for path in tmp_path.iterdir()] == ["batch.safetensors"]


@pytest.mark.parametrize(
    "batch",
    [
        DataProto(meta_info={"a": 1}),
        DataProto.from_dict(non_tensors={"x": ["a"]}),
        DataProto.from_dict({"a": torch.zeros(2)}),
        DataProto.from_dict({"a": torch.zeros(0, 3)}, {"x": []}),
        DataProto.from_dict({"a": torch.arange(6).view(6, 1)}).chunk(2)[1],
    ],
)
def test_round_trip_of_partial_batches(tmp_path, batch):
    batch.save(tmp_path / "batch")
    loaded = DataProto.load(tmp_path / "batch")
    assert (loaded.batch is None, len(loaded), loaded.row_keys(), loaded.meta_info) == (
        batch.batch is None,
        len(batch),
        batch.row_keys(),
        batch.meta_info,
    )
    loaded.union(batch)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": {"b": (1, 2)}}, r"non_tensor_batch\['x'\]\[1\]\['a'\]\['b'\] is of type tuple"),
        ([0, {1: 2}], r"non_tensor_batch\['x'\]\[1\]\[1\] key 1 is of type int"),
        (np.int64(3), r"non_tensor_batch\['x'\]\[1\] is of type int64"),
        ({"when": datetime.date(2026, 1, 1)}, r"\['when'\] is of type date"),
        (torch.zeros(2), "is of type Tensor"),
        (len, "is of type builtin_function_or_method"),
    ],
)
def test_what_cannot_come_back_is_refused_by_place(tmp_path, value, place):
    with pytest.raises(DataError, match=place):
        DataProto.from_dict({"a": torch.zeros(2)}, {"x": ["fine", value]}).save(tmp_path / "batch")
    assert list(tmp_path.iterdir()) == []


def test_meta_info_that_cannot_come_back_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"meta_info\['t'\] is of type Tensor, which cannot be stored"):
        DataProto(meta_info={"t": torch.zeros(1)}).save(tmp_path / "batch")


def test_column_of_dates_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"non_tensor_batch\['when'\] has dtype datetime64"):
        DataProto(None, {"when": np.array(["2026-01-01"], dtype="datetime64[D]")}).save(tmp_path / "batch")


def test_damaged_missing_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "batch"
    with pytest.raises(DataError, match=r"batch written by DataProto\.save, but cannot be read"):
        DataProto.load(path)
    DataProto.from_dict({"a": torch.zeros(100)}).save(path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match="cannot be read"):
        DataProto.load(path)


class Bomb:
    def __reduce__(self):
        return (exit, (3,))


def test_pickle_is_never_run(tmp_path):
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="cannot be read"):
        DataProto.load(path)


def test_failed_save_keeps_the_file_that_is_there(tmp_path):
    path = tmp_path / "batch"
    DataProto.from_dict(non_tensors={"x": ["good"]}).save(path)
    with pytest.raises(DataError):
        DataProto.from_dict(non_tensors={"x": [object()]}).save(path)
    assert DataProto.load(path).non_tensor_batch["x"].tolist() == ["good"]
