import json

import pyarrow
import pyarrow.parquet

from ppo_lightning.report.browser import samples
from ppo_lightning.report.dumps import dump_rows, dumps, json_lines
from ppo_lightning.report.embed import unpacked
from ppo_lightning.report.reading import read_run
from ppo_lightning.report.recorded import recorded_ledger


def to_parquet(file):
    """Rewrite a JSONL dump with TRL's columns; what is nested becomes JSON."""
    rows = list(json_lines(file))
    names = {"input": "prompt", "output": "completion", "score": "reward"}
    cells = [{names.get(key, key): value for key, value in row.items()} for row in rows]
    for row in cells:
        row["prompt"] = "\n".join(message["content"] for message in row["prompt"])
        row["tokens"], row["extra_info"] = json.dumps(row["tokens"]), json.dumps(row["extra_info"])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(cells), file.with_suffix(".parquet"))
    file.unlink()
    return rows


def test_parquet_reads_as_jsonl_does(made):
    folder = made(steps=4, prompts=2, samples=2)
    before = recorded_ledger(read_run(folder), 3)
    originals = {step: to_parquet(file) for step, file in dumps(folder / "rollouts", "step").items()}
    run = read_run(folder)
    for step, file in run.dumps("step").items():
        found = list(dump_rows(file))
        assert [row["output"] for row in found] == [row["output"] for row in originals[step]]
        assert [row["tokens"] for row in found] == [row["tokens"] for row in originals[step]]
    assert recorded_ledger(run, 3) == before
    assert [entry[1] for entry in samples(run).index] == [1, 2, 3, 4]
    assert unpacked(samples(run).blocks[0])[0][0]["p"].startswith("What is 1")


def test_what_is_torn_is_left_out(tmp_path):
    (tmp_path / "step_000001.parquet").write_bytes(b"PAR1 torn")
    (tmp_path / "step_000002.jsonl").write_text('{"a": 1}\n[1]\n{"b": ')
    (tmp_path / "step_000003.partial").write_text("{}")
    (tmp_path / "step_x.jsonl").write_text("{}")
    found = dumps(tmp_path, "step")
    assert sorted(found) == [1, 2]
    assert list(dump_rows(found[1])) == []
    assert list(dump_rows(found[2])) == [{"a": 1}]
    assert list(json_lines(tmp_path / "none")) == []
