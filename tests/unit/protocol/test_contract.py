"""The table of fields, and the checks at stage boundaries that are made against it."""

import subprocess
import sys

import pytest
import torch

from ppo_lightning.errors import DataError
from ppo_lightning.protocol.contract import check_fields, has, require, require_written
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.fields import BATCH, FIELDS, LAYERS, META, NON_TENSOR

STAGES = (
    "data",
    "rollout",
    "align",
    "score",
    "old_log_prob",
    "ref_log_prob",
    "values",
    "advantage",
    "update",
    "padding",
)
DTYPES = {BATCH: {"int64", "float32", "bool"}, NON_TENSOR: {"object"}, META: {"int", "float", "bool", "list"}}


def test_every_declaration_is_complete():
    assert len({declared.doc for declared in FIELDS.values()}) == len(FIELDS)
    for name, declared in FIELDS.items():
        assert declared.name == name
        assert declared.layer in LAYERS
        assert declared.stage in STAGES, name
        assert declared.dtype in DTYPES[declared.layer], name
        assert declared.axes == () if declared.layer == META else declared.axes[0] == "B", name
        assert set(declared.axes) <= {"B", "P", "R", "S"}


def test_table_imports_without_torch():
    code = "import sys, ppo_lightning.protocol.fields; assert not {'torch', 'numpy', 'tensordict'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def batch():
    return DataProto.from_dict(
        {
            "prompts": torch.zeros(2, 3, dtype=torch.int64),
            "responses": torch.zeros(2, 4, dtype=torch.int64),
            "input_ids": torch.zeros(2, 7, dtype=torch.int64),
            "rm_scores": torch.zeros(2, 4),
        },
        {"uid": ["a", "b"]},
        {"temperature": 1.0},
    )


def test_complete_batch_passes():
    require(batch(), ("responses", "rm_scores", "uid", "temperature"), "advantage")
    require_written(batch(), ("rm_scores",), "score")


def test_missing_key_names_the_stage_that_has_not_run():
    with pytest.raises(DataError, match="`old_log_probs` is missing: stage old_log_prob has not run; stage advantage"):
        require(batch(), ("responses", "old_log_probs"), "advantage")
    with pytest.raises(DataError, match="`global_token_num` is missing: stage align has not run"):
        require(batch(), ("global_token_num",), "settle")


def test_unknown_key_suggests_the_nearest():
    with pytest.raises(DataError, match=r"no stage writes it \(did you mean `old_log_probs`\?\)"):
        require(batch(), ("old_log_prob",), "advantage")


def test_key_in_the_wrong_layer_is_not_there():
    wrong = DataProto.from_dict({"temperature": torch.zeros(2)}, {"acc": [1, 2]})
    assert not has(wrong, "temperature")
    assert has(wrong, "acc")
    with pytest.raises(DataError, match="`temperature` must be in meta_info, got it in batch"):
        check_fields(wrong)
    with pytest.raises(DataError, match="`rm_scores` must be in batch, got it in non_tensor_batch"):
        check_fields(DataProto.from_dict(non_tensors={"rm_scores": [1.0]}))


def test_stage_that_did_not_write():
    with pytest.raises(DataError, match="`values` is missing: stage values has run but did not write it"):
        require_written(batch(), ("values",), "values")


@pytest.mark.parametrize(
    ("key", "tensor", "text"),
    [
        (
            "values",
            torch.zeros(2, 4, dtype=torch.bfloat16),
            "`values` must be float32, got bfloat16: stage values writes",
        ),
        ("values", torch.zeros(2), r"`values` must have axes \(B, R\), got shape \(2,\)"),
        ("values", torch.zeros(2, 7), r"`values` must have R = 4 as `responses` has, got 7 in shape \(2, 7\)"),
        ("attention_mask", torch.zeros(2, 8, dtype=torch.int64), "must have S = 7 as `input_ids` has, got 8"),
        ("is_padding", torch.zeros(2), "`is_padding` must be bool, got float32"),
    ],
)
def test_tensor_that_is_not_as_declared(key, tensor, text):
    with pytest.raises(DataError, match=text):
        require(batch().union(DataProto.from_dict({key: tensor})), (), "advantage")


def test_widths_must_add_up():
    wrong = batch().select(["prompts", "responses"])
    wrong.union(DataProto.from_dict({"input_ids": torch.zeros(2, 8, dtype=torch.int64)}))
    with pytest.raises(DataError, match=r"S must be P \+ R, got P = 3 \(`prompts`\), R = 4 \(`responses`\), S = 8"):
        check_fields(wrong)


def test_undeclared_keys_are_the_users():
    check_fields(batch().union(DataProto.from_dict({"mine": torch.zeros(2, 5, dtype=torch.float16)})))
