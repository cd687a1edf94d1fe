import json

import pytest

from ppo_lightning.data.generators import generate
from ppo_lightning.data.sources import HubUnreachableError, read
from ppo_lightning.errors import DataError


def test_jsonl_keeps_row_numbers_and_reports_broken_lines(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"a": 1}\n\nnot json\n{"a": "\xff"}\n[1]\n{"a": 2}\n')
    source = read(str(file), "data.train")
    assert source.rows == [(1, {"a": 1}), (6, {"a": 2})]
    assert [number for number, _ in source.broken] == [3, 4, 5]
    assert "not UTF-8" in source.broken[1][1]


def test_json_and_parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "rows.json").write_text(json.dumps([{"a": 1}, {"a": 2}]))
    pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2]}), tmp_path / "rows.parquet")
    for name in ("rows.json", "rows.parquet"):
        assert read(str(tmp_path / name), "data.train").rows == [(1, {"a": 1}), (2, {"a": 2})]


def test_arithmetic_is_right_and_repeats():
    rows = generate("arithmetic", "rows=50,digits=2,seed=3,operations=+-", "data.train")
    assert rows == generate("arithmetic", "rows=50,digits=2,seed=3,operations=+-", "data.train")
    for row in rows:
        assert str(eval(row["question"].split("?")[0].removeprefix("What is "))) == row["answer"]
    assert rows != generate("arithmetic", "rows=50,digits=2,seed=4,operations=+-", "data.train")


def test_a_function_of_ones_own_returns_rows(tmp_path, monkeypatch):
    (tmp_path / "own_rows.py").write_text("def two(start=0):\n    return [{'a': start}, {'a': start + 1}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    source = read("own_rows:two:start=5", "data.train")
    assert (source.name, source.rows) == ("own_rows:two", [(0, {"a": 5}), (1, {"a": 6})])
    assert read("own_rows:two", "data.train").rows == [(0, {"a": 0}), (1, {"a": 1})]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("none.jsonl", "no such file"),
        ("just words here", "must be a .jsonl"),
        ("arithmetic:rows", "option=value"),
        ("arithmetic:colour=red", "colour"),
        ("reasoning_gym/no_such_task", "no_such_task"),
        ("no_such_module:rows", "data.train: 'no_such_module:rows' must be importable"),
        ("json:loads:colour=red", "colour"),
    ],
)
def test_mistakes(spec, says):
    with pytest.raises(DataError, match=says):
        read(spec, "data.train")


def test_hub_out_of_reach_is_said_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(HubUnreachableError, match="no cached copy"):
        read("openai/gsm8k:main@train", "data.train")
