import json
import re
import subprocess
import sys

import pytest
from made_run import HOSTILE

from ppo_lightning.cli import main
from ppo_lightning.errors import DataError
from ppo_lightning.report import browser
from ppo_lightning.report.browser import evenly, first_groups, samples
from ppo_lightning.report.dumps import json_lines
from ppo_lightning.report.embed import as_json, packed, unpacked
from ppo_lightning.report.headline import headlines, state
from ppo_lightning.report.page import ASSETS, UPLOT, UPLOT_VERSION, report_html, write_report
from ppo_lightning.report.reading import read_run, read_runs
from ppo_lightning.report.timing import timing

DATA = re.compile(r'<script type="application/gzip" id="([\w-]+)">([^<]*)</script>')


def data_of(text):
    return {name: unpacked(data) for name, data in DATA.findall(text)}


def test_a_page_holds_everything_and_asks_for_nothing(made):
    text = report_html([read_run(made(prompts=2, samples=2))])
    assert not re.search(r'(?:src|href)="(?!#|data:)', text)
    assert "default-src 'none'" in text
    found = data_of(text)
    run = found["core"]["runs"][0]
    assert [entry[:2] for entry in run["samples"]["index"]] == [["step", step] for step in range(1, 13)]
    rows = found["block-0-0"][0]
    assert len(rows) == 4
    assert rows[0]["p"][0]["content"].startswith("What is 1")
    assert set(rows[0]["t"]) == {"text", "log_prob", "gap", "advantage"}
    assert rows[0]["x"]["acc"] == rows[0]["s"]
    assert found["core"]["metrics"]["actor/entropy"]["stage"]


def test_a_response_cannot_become_markup(made):
    folder = made()
    (folder / "config.yaml").write_text(f"name: {json.dumps(HOSTILE)}\n")
    text = report_html([read_run(folder)])
    assert HOSTILE not in text
    assert text.count("<script") == text.count("</script>")
    assert HOSTILE in json.dumps(data_of(text)["block-0-0"]).replace('\\"', '"')


def test_naive_embedding_would_break_the_page():
    assert "</script>" in json.dumps({"output": HOSTILE})
    assert "<" not in packed(as_json({"output": HOSTILE}))


def test_the_same_run_gives_the_same_data(made):
    folder = made()
    assert data_of(report_html([read_run(folder)])) == data_of(report_html([read_run(folder)]))


def test_nan_becomes_null():
    assert unpacked(packed(as_json({"a": [float("nan"), 1.5], "b": (float("inf"),)}))) == {
        "a": [None, 1.5],
        "b": [None],
    }


def test_torn_files_of_a_killed_run(made):
    folder = made(planned=20)
    with (folder / "metrics.jsonl").open("a") as out:
        out.write('{"step": 13, "actor/en')
    with (folder / "rollouts" / "step_000012.jsonl").open("a") as out:
        out.write('{"input": [')
    run = read_run(folder)
    assert len(run.steps) == 12
    assert state(run) == ("ended after step 12 of 20", True)
    assert "ended after step 12 of 20" in report_html([run])


def test_a_folder_that_is_no_run_is_said(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "must be a run directory" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"config\.yaml"):
        read_run(tmp_path)


def test_the_verb_writes_the_page(made, tmp_path, capsys):
    first, second = made(), made(name="other", seed=1)
    assert main(["report", str(first)]) == 0
    assert (first / "report.html").stat().st_size > 50_000
    assert main(["report", str(first), str(second), "--out", str(tmp_path / "both.html")]) == 0
    assert [run["name"] for run in data_of((tmp_path / "both.html").read_text())["core"]["runs"]] == ["made", "other"]
    assert "wrote" in capsys.readouterr().out
    assert main(["report", str(first), "--out", str(tmp_path / "no" / "folder.html")]) == 2


def test_runs_of_one_name_are_told_apart(made):
    one, two = made(name="a/run"), made(name="b/run")
    assert [run.name for run in read_runs([one, two])] == ["a/run", "b/run"]


def test_headlines_say_from_where_to_where(made):
    found = {line.label: line for line in headlines(read_run(made(validate_every=4, planned=20)))}
    assert found["state"].bad
    assert found["held out: sums"].value == "0.1 → 0.9"
    assert found["warnings"].value == "1"
    assert "tokens per second and device" in found


def test_throughput_is_a_ratio_of_sums_not_a_mean_of_ratios(made):
    run = read_run(made())
    tokens = sum(row["perf/total_num_tokens"] for row in run.steps)
    seconds = sum(row["timing_s/step"] for row in run.steps)
    found = next(line for line in headlines(run) if line.label.startswith("tokens per second"))
    assert float(found.value) == pytest.approx(tokens / (2 * seconds), rel=5e-3)


def test_seconds_add_up(made):
    run = read_run(made(validate_every=4))
    found = timing(run)
    whole = sum(row["timing_s/step"] + row.get("timing_s/testing", 0) for row in run.steps)
    assert found["everything"] == pytest.approx(whole, rel=1e-5)
    assert sum(found["share"]) == pytest.approx(1, abs=1e-4)
    assert "update_actor" not in found["stages"], "it is a part of update: counted twice"


def test_columns_of_a_long_run_are_means(made):
    found = timing(read_run(made(steps=500, prompts=1, samples=1, dump_every=500)))
    assert found["span"] == 3
    assert len(found["steps"]) == 167
    gen = found["seconds"][found["stages"].index("gen")]
    assert sum(value * size for value, size in zip(gen, [3] * 166 + [2], strict=True)) == pytest.approx(
        found["total"][found["stages"].index("gen")], rel=1e-4
    )


def test_samples_keep_to_their_budget_and_say_so(made):
    folder = made(steps=60, prompts=2, samples=2)
    run = read_run(folder)
    everything, some = samples(run), samples(run, budget=20_000)
    assert everything.rule == "All responses of all 60 dumps are here."
    steps = [entry[1] for entry in some.index]
    assert 2 <= len(steps) < 60
    assert steps[0] == 1
    assert sum(len(json.dumps(unpacked(block))) for block in some.blocks) < 30_000
    assert f"{len(steps)} of 60 dumps" in some.rule


def test_groups_are_not_cut_in_two(made):
    folder = made(steps=1, prompts=5, samples=4)
    rows, more = first_groups(folder / "rollouts" / "step_000001.jsonl", limit=10)
    assert more
    assert len(rows) == 8
    whole = list(json_lines(folder / "rollouts" / "step_000001.jsonl"))
    assert rows == whole[:8]
    assert len(whole[:10]) % 4 != 0, "taking the first rows alone would cut one"


def test_evenly_keeps_both_ends():
    assert evenly(list(range(10)), 4) == [0, 3, 6, 9]
    assert evenly(list(range(3)), 5) == [0, 1, 2]
    assert evenly(list(range(10)), 0) == [0, 9]


def test_a_group_larger_than_the_limit_is_cut(made):
    folder = made(steps=1, prompts=1, samples=9)
    rows, more = first_groups(folder / "rollouts" / "step_000001.jsonl", limit=4)
    assert (len(rows), more) == (4, True)
    assert browser.ROWS == 64


def test_no_rollouts_is_said(tmp_path):
    (tmp_path / "config.yaml").write_text("name: x\n")
    text = report_html([read_run(tmp_path)])
    assert "wrote no rollouts" in data_of(text)["core"]["runs"][0]["samples"]["rule"]


def test_where_it_ran_is_told(made):
    folder = made()
    (folder / "environment.json").write_text('{"device": "cpu <2>"}')
    assert "cpu &lt;2&gt;" in report_html([read_run(folder)])
    (folder / "environment.json").write_text('{"device": ')
    assert read_run(folder).environment == {}


def test_options_that_differ_are_listed(made):
    run = read_run(made(lr=3e-5))
    assert run.changed()["actor.lr"] == (3e-5, 1e-6)
    assert "rollout.temperature" not in run.changed()


def test_the_page_imports_no_torch():
    code = "import sys, ppo_lightning.report.page, ppo_lightning.verbs.ledger; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_page_is_whole_or_absent(made, tmp_path):
    target = tmp_path / "taken.html"
    target.mkdir()
    with pytest.raises(DataError, match="can be written"):
        write_report([made()], target)
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_the_chart_library_is_named_with_its_licence(made):
    text = report_html([read_run(made())])
    assert f"(v{UPLOT_VERSION})" in (ASSETS / UPLOT[0]).read_text()[:100]
    assert "Permission is hereby granted, free of charge" in text
