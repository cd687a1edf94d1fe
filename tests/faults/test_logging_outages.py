"""W&B down at the start, in the middle or at the end, or a full disk: the run ends with 0 and metrics.jsonl whole.

Pitfall 57: a resumed run goes on in the same W&B run, no step is dropped, no table is written over.
"""

import csv
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import lightning as L
import psutil
import pyarrow.parquet
import pytest
import wandb
from wandb_files import history, records

from ppo_lightning.loggers.wandb import AXIS, COLUMNS, unreachable

GROUPED = [
    "algorithm.adv_estimator=grpo",
    "checkpoint.every_steps=1",
    "data.max_val_rows=2",
    "validation.every_steps=2",
]
FULL_DISK = "/dev/full"
"""Opens for writing, and answers every write with ENOSPC."""


class After(L.Callback):
    """Does something when a step is over, before its line is written; after step 0: before the first."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def on_train_start(self, trainer, pl_module):
        if self.step == 0:
            self.act()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if pl_module.step == self.step:
            self.act()


@pytest.fixture(autouse=True, scope="module")
def keyed():
    """A key of the right form, so that nothing asks for one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", "c" * 40)
        yield patch
    wandb.teardown()


def serve_at(keyed, port):
    """Point W&B at a port of this machine; it reads its address once per process unless it is torn down."""
    wandb.teardown()
    keyed.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def down_at_start(fit_tiny, tmp_path_factory, keyed):
    """A run of three steps whose W&B server is not there, resumed for a fourth."""
    serve_at(keyed, closed_port())
    folder = tmp_path_factory.mktemp("down")
    options = [*GROUPED, "logging.wandb=online", "logging.loggers=[tensorboard,csv]"]
    first = fit_tiny(folder, *options, "trainer.steps=3")
    second = fit_tiny(folder, *options, "trainer.steps=4", resume="auto")
    keyed.delenv("WANDB_BASE_URL")
    return first, second


def test_a_server_that_is_down_is_said_in_one_line(down_at_start, lines):
    (_, folder, _), _ = down_at_start
    for code, _, said in down_at_start:
        assert code == 0
        (line,) = [line for line in said.splitlines() if "W&B" in line]
        assert "cannot be reached" in line
        assert "wandb sync" in line
    assert [row["step"] for row in lines(folder)] == [0, 1, 2, 3, 4]


def test_offline_files_hold_every_step_on_one_axis(down_at_start, lines):
    _, folder, _ = down_at_start[1]
    rows = history(folder)
    assert [row[AXIS] for row in rows] == [0, 1, 2, 3, 4]
    for row, line in zip(rows, lines(folder), strict=True):
        numbers = {key: value for key, value in line.items() if value is not None and key != "step"}
        assert {key: row[key] for key in numbers} == pytest.approx(numbers)
    axes = {record.glob_name or record.name: record.step_metric for record in records(folder, "metric")}
    assert axes["*"] == AXIS


def test_a_resumed_run_is_the_same_run(down_at_start):
    _, folder, _ = down_at_start[1]
    ids = {record.run_id for record in records(folder, "run")}
    states = list(folder.glob("checkpoints/step_000004/**/state.json"))
    assert ids == {json.loads(state.read_text())["wandb_id"] for state in states}
    assert len(ids) == 1


def test_no_table_is_written_over(down_at_start):
    """Every step has its own file of samples; the naive way, one file per key, would keep the last alone."""
    _, folder, _ = down_at_start[1]
    rows = history(folder)
    for split, steps in (("training", [1, 2, 3, 4]), ("validation", [0, 2, 3, 4])):
        paths = {row[AXIS]: row[key] for row in rows if (key := f"samples/{split}/path") in row}
        assert sorted(paths) == steps
        assert len(set(paths.values())) == len(steps)
        for step, path in paths.items():
            (file,) = folder.glob(f"wandb/offline-run-*/files/{path}")
            table = json.loads(file.read_text())
            assert tuple(table["columns"]) == COLUMNS
            assert {row[0] for row in table["data"]} == {step}
            assert len(table["data"]) == (16 if split == "training" else 2)


def test_the_recipe_is_an_artifact(down_at_start):
    _, folder, _ = down_at_start[1]
    artifacts = [record for record in records(folder, "artifact") if record.type == "recipe"]
    assert {entry.path for record in artifacts for entry in record.manifest.contents} >= {"config.yaml"}


def test_tensorboard_and_csv(down_at_start, lines):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, folder, _ = down_at_start[1]
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    scores = {row["step"]: row["critic/score/mean"] for row in lines(folder)[1:]}
    assert {item.step: item.value for item in events.Scalars("critic/score/mean")} == pytest.approx(scores)
    with (folder / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["step"] for row in table] == ["0", "1", "2", "3", "4"]
    assert [float(row["critic/score/mean"]) for row in table[1:]] == list(scores.values())
    assert table[0]["critic/score/mean"] == ""


def test_warnings_are_said_once_and_go_on_after_a_resume(down_at_start, lines):
    """The random model never ends a response: that is a warning from the third step on."""
    (_, folder, first), (_, _, second) = down_at_start
    assert first.count("responses cut off") == 1
    assert "rollout.response_tokens" in first
    assert "responses cut off" not in second
    written = [json.loads(line) for line in (folder / "warnings.jsonl").read_text().splitlines()]
    assert [(row["step"], row["event"]) for row in written if row["rule"] == "responses cut off"] == [(3, "begins")]
    counts = [row["training/warnings"] for row in lines(folder)[1:]]
    assert counts[0] == 0
    assert counts[2] >= 1
    assert counts[3] >= 1


@pytest.fixture(scope="module")
def killed(fit_tiny, tmp_path_factory, keyed):
    """W&B's process is killed after step 1; the disk is full for metrics.jsonl until step 3 and for one dump."""
    folder = tmp_path_factory.mktemp("killed")
    run_dir = folder / "run"
    (run_dir / "rollouts").mkdir(parents=True)
    (run_dir / "rollouts" / "step_000002.partial").symlink_to(FULL_DISK)
    services = lambda: [p for p in psutil.Process().children(recursive=True) if "wandb" in p.name()]  # noqa: E731
    full = After(0, lambda: (run_dir / "metrics.jsonl").symlink_to(FULL_DISK))
    kill = After(1, lambda: [process.kill() for process in services()])
    space = After(3, (run_dir / "metrics.jsonl").unlink)
    options = ["data.val=null", "trainer.steps=4", "logging.wandb=offline", "algorithm.adv_estimator=grpo"]
    return fit_tiny(folder, *options, callbacks=[full, kill, space])


def test_a_killed_service_and_a_full_disk_do_not_stop_a_run(killed, lines):
    code, folder, said = killed
    assert code == 0
    assert [row["step"] for row in lines(folder)] == [1, 2, 3, 4]
    assert said.count("warning: W&B lost") == 1
    assert said.count("metrics.jsonl: No space left on device") == 1
    assert "metrics.jsonl: written again, nothing is missing" in said
    assert said.count("rollouts/ lost step_000002: No space left on device") == 1


def test_what_was_lost_is_counted(killed, lines):
    _, folder, said = killed
    dumps = sorted(path.name for path in (folder / "rollouts").glob("*.jsonl"))
    assert dumps == ["step_000001.jsonl", "step_000003.jsonl", "step_000004.jsonl"]
    assert sum(row["training/records_lost"] for row in lines(folder)) >= 2
    assert said.count("log records lost") >= 1


def test_the_naive_way_fails_on_that_disk(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to(FULL_DISK)
    with pytest.raises(OSError, match="No space left"):
        (tmp_path / "metrics.jsonl").write_text("{}\n")


class Opens(BaseHTTPRequestHandler):
    """Answers as much as W&B needs to open a run."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        owner = {"id": "p", "name": "p", "entity": {"id": "e", "name": "e"}}
        bucket = {"id": "b", "name": "n", "displayName": "n", "historyLineCount": 0, "project": owner}
        body = json.dumps({"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def test_a_server_that_goes_away(fit_tiny, tmp_path, keyed, lines):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Opens)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    serve_at(keyed, server.server_port)
    keyed.setenv("WANDB_FINISH_TIMEOUT", "2")
    leave = After(1, lambda: (server.shutdown(), server.server_close()))
    options = ["data.val=null", "trainer.steps=2", "logging.wandb=online", "algorithm.adv_estimator=grpo"]
    code, folder, said = fit_tiny(tmp_path, *options, "logging.rollouts=parquet", callbacks=[leave])
    keyed.delenv("WANDB_BASE_URL")
    assert code == 0
    assert "cannot be reached" not in said
    assert [row["step"] for row in lines(folder)] == [1, 2]
    assert list(folder.glob("wandb/run-*/run-*.wandb"))
    table = pyarrow.parquet.read_table(folder / "rollouts" / "step_000002.parquet")
    assert table.column_names[:5] == ["step", "prompt", "completion", "reward", "advantage"]
    assert table.num_rows == 16
    assert set(table["step"].to_pylist()) == {2}


def test_whatever_answers_is_reachable():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Opens)  # to GET it answers 501
    threading.Thread(target=server.serve_forever, daemon=True).start()
    assert unreachable(f"http://127.0.0.1:{server.server_port}") is None
    server.shutdown()
    server.server_close()


def test_a_server_that_takes_connections_and_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "timed out" in unreachable(f"http://127.0.0.1:{port}", seconds=0.2)
        socket.create_connection(("127.0.0.1", port), timeout=1).close()  # a mere connection would call it up
    assert "refused" in unreachable(f"http://127.0.0.1:{port}")
