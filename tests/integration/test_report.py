"""The report that a real run leaves behind, whatever ended it."""

import re

import lightning as L
import pytest

from ppo_lightning.report.dumps import json_lines
from ppo_lightning.report.embed import unpacked
from ppo_lightning.report.numbers import printed
from ppo_lightning.report.page import write_report
from ppo_lightning.report.reading import read_run
from ppo_lightning.report.recorded import recorded_ledger


class Dies(L.Callback):
    """Breaks the second step, and makes it impossible to write the report."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if pl_module.step == 2:
            (self.folder / "report.html").mkdir()
            raise RuntimeError("the <disk> is gone")


def test_a_run_leaves_a_report(run, capsys):
    code, folder, record = run("trainer.steps=2")
    assert code == 0
    assert f"report: {folder / 'report.html'}" in capsys.readouterr().out.replace("\n", "")
    text = (folder / "report.html").read_text()
    core = unpacked(re.search(r'id="core">([^<]+)<', text)[1])["runs"][0]
    assert [entry[:2] for entry in core["samples"]["index"] if entry[0] == "step"] == [["step", 1], ["step", 2]]
    loaded = read_run(folder)
    for step, batch in enumerate(record.batches, start=1):
        rows = list(json_lines(folder / "rollouts" / f"step_{step:06d}.jsonl"))
        assert [row["prompt_length"] + row["response_length"] for row in rows] == batch.meta_info["global_token_num"]
        gaps = (batch.batch["old_log_probs"] - batch.batch["rollout_log_probs"]).tolist()
        for place, row in enumerate(rows):
            length = row["response_length"]
            assert len(row["tokens"]["text"]) == length
            assert row["tokens"]["gap"] == pytest.approx(gaps[place][:length], rel=0.06, abs=1e-9)
        recorded = recorded_ledger(loaded, step)
        assert recorded.lengths is not None
        assert len(recorded.logged) == 6
        for name, logged in recorded.logged.items():
            assert printed(getattr(recorded.entries, name)) == printed(logged), name


def test_a_run_that_dies_ends_as_it_died_though_its_report_fails(run, tmp_path, capsys):
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="the <disk> is gone"):
        run("trainer.steps=3", "data.val=null", callbacks=[Dies(folder)])
    assert "report: not written" in capsys.readouterr().out
    (folder / "report.html").rmdir()
    text = write_report([folder]).read_text()
    assert "ended after step 1 of 3: RuntimeError: the &lt;disk&gt; is gone" in text
