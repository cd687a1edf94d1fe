import json

import pytest

from ppo_lightning.cli import main
from ppo_lightning.errors import DataError
from ppo_lightning.report.dumps import json_lines
from ppo_lightning.report.numbers import printed
from ppo_lightning.report.reading import read_run
from ppo_lightning.report.recorded import all_counts, counts_of, recorded_ledger

SIZES = [
    "data.prompts_per_step=2", "rollout.rollouts_per_prompt=2", "rollout.response_tokens=8", "data.max_prompt_tokens=4",
    "update.sequences_per_minibatch=4",
]  # fmt: skip


def lines_of(capsys):
    return {line[:32].strip(): line.split() for line in capsys.readouterr().out.splitlines()}


def test_a_recipe_by_hand(capsys):
    assert main(["ledger", *SIZES, "--lengths", "8,4,0,8", "--prompt-lengths", "3,2", "--seconds", "5"]) == 0
    text = capsys.readouterr().out
    for label, value in {
        "sequences (B)": "4", "response tokens": "20", "perf/total_num_tokens": "30", "of them on padding": "1",
        "weight of one token": "0.05", "response_length/mean": "5", "response_length_non_aborted/mean": "6.66667",
        "response_length/clip_ratio": "0.5", "response/aborted_ratio": "0.25", "perf/throughput": "6",
    }.items():  # fmt: skip
        line = next(line for line in text.splitlines() if line.startswith(label))
        assert line.removeprefix(label).split()[0] == value, label


def test_a_recipe_without_lengths_shows_bounds(capsys):
    assert main(["ledger", *SIZES[:-1], "update.sequences_per_minibatch=2"]) == 0
    text = capsys.readouterr().out
    assert "all full" in text
    assert "half aborted" in text
    assert "2 mini-batches" in text
    assert "--seconds" in text
    assert max(map(len, text.splitlines())) <= 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lengths", "9"], "0..8 (rollout.response_tokens) - got 9"),
        (["--prompt-lengths", "0"], "1..4 (data.max_prompt_tokens)"),
        (["--seconds", "0"], "more than 0"),
    ],
)
def test_what_cannot_be_is_said(capsys, arguments, words):
    assert main(["ledger", *SIZES, *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_page_opens_at_the_recipe(tmp_path, capsys):
    file = tmp_path / "ledger.html"
    assert main(["ledger", *SIZES, "--html", "--out", str(file)]) == 0
    assert file.stat().st_size > 20_000
    assert str(file) in capsys.readouterr().out


def test_every_step_is_made_again_from_its_metrics(made):
    """Counts come back as whole numbers from means, for every step, and equal what the rows say."""
    folder = made(steps=80, prompts=3, samples=4)
    run = read_run(folder)
    for row in run.steps:
        rows = list(json_lines(folder / "rollouts" / f"step_{row['step']:06d}.jsonl"))
        lengths = [one["response_length"] for one in rows]
        found = counts_of(run, row)
        assert found.sequences == len(rows)
        assert found.response_tokens == sum(lengths)
        assert found.prompt_tokens == sum(one["prompt_length"] for one in rows)
        assert found.non_aborted == sum(length > 0 for length in lengths)
        assert found.clipped == sum(length == 16 for length in lengths)
        recorded = recorded_ledger(run, row["step"])
        assert recorded.lengths is not None
        for name, logged in recorded.logged.items():
            assert printed(getattr(recorded.entries, name)) == printed(logged)


def test_a_dump_of_one_rank_is_not_taken_for_the_step(made):
    folder = made(steps=2, prompts=2, samples=2)
    file = folder / "rollouts" / "step_000001.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    recorded = recorded_ledger(read_run(folder), 1)
    assert recorded.lengths is None
    assert recorded.entries.sequences == 4


def test_tokens_that_a_mask_leaves_out_weigh_nothing(made):
    folder = made(steps=1, prompts=1, samples=2)
    with (folder / "config.yaml").open("a") as out:
        out.write("algorithm:\n  mask_truncated: true\n")
    file = folder / "rollouts" / "step_000001.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["trained_tokens"] = 0
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run = read_run(folder)
    entries = recorded_ledger(run, 1).entries
    assert entries.trained_tokens == rows[1]["response_length"] < entries.response_tokens
    assert entries.token_weight == 1 / rows[1]["response_length"]
    assert all_counts(run)["trained_tokens"] == [None], "metrics alone do not tell"


def test_a_run_on_the_console(made, capsys):
    folder = made(steps=3)
    assert main(["ledger", "--run", str(folder), "--step", "2"]) == 0
    text = capsys.readouterr().out
    assert "step 2, from the rows" in text
    assert main(["ledger", "--run", str(folder)]) == 0
    assert "step 3" in capsys.readouterr().out
    assert main(["ledger", "--run", str(folder), "--step", "9"]) == 2
    assert "it has 1 to 3" in capsys.readouterr().err
    assert main(["ledger", "--run", str(folder), *SIZES]) == 2
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(DataError, match="it has none"):
        recorded_ledger(read_run(folder), 1)
