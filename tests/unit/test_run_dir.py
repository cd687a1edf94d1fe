"""Run directories: names that stay inside, lines that are whole or absent, no secret in any file."""

import json
import resource

import pytest

from ppo_lightning.errors import ConfigError
from ppo_lightning.run_dir import JsonLines, RunDir

OUTSIDE = [
    "", ".", "..", "../x", "../../x", "a/b", "/etc/x", "a/../../x", "~/x", "x\0y", "x\n", "a b", ".hidden", "-rf",
    "\\x", "a" * 201, "ü" * 101, "$HOME", "x;y", "x*",
]  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE, ids=range(len(OUTSIDE)))
def test_names_that_are_no_plain_folder_names(tmp_path, name):
    with pytest.raises(ConfigError, match="plain folder name"):
        RunDir.fresh(str(tmp_path / "runs"), name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["run", "a" * 200, "grpo-8x8_lr1e-5.v2", "лето", "2026"])
def test_plain_names(tmp_path, name):
    found = RunDir.fresh(str(tmp_path), name)
    found.create()
    assert found.path == tmp_path / name


def test_a_plain_join_would_leave_the_folder(tmp_path):
    assert (tmp_path / "runs" / "../x").resolve() == tmp_path / "x"
    assert (tmp_path / "/etc/x").parts[:2] == ("/", "etc")


def test_a_link_in_the_runs_folder_leads_nowhere(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run").symlink_to(outside)
    with pytest.raises(ConfigError, match="got a link to"):
        RunDir.fresh(str(tmp_path / "runs"), "run").create()
    assert list(outside.iterdir()) == []


def test_output_dir_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    RunDir(str(tmp_path / "runs"), "run").create()
    assert (tmp_path / "disk" / "run").is_dir()


def test_impossible_output_dirs(tmp_path):
    with pytest.raises(ConfigError, match="NUL"):
        RunDir("a\0b", "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        RunDir(str(tmp_path / "file"), "run").create()


@pytest.fixture
def small_disk():
    """Return a function that bounds the size of every file that this process writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size if size else soft, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_half_fits_is_taken_back_and_written_later(tmp_path, small_disk):
    lines = JsonLines(tmp_path / "metrics.jsonl")
    assert lines.append({"step": 1}) is None
    small_disk(18)
    error = lines.append({"step": 2})
    assert error is not None
    assert lines.file.read_text() == '{"step": 1}\n'
    assert lines.append({"step": 3}) is not None
    small_disk(0)
    assert lines.append({"step": 4}) is None
    assert [json.loads(line)["step"] for line in lines.file.read_text().splitlines()] == [1, 2, 3, 4]
    assert lines.waiting == []


def test_the_naive_append_leaves_a_torn_line(tmp_path, small_disk):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n')
    small_disk(18)
    with pytest.raises(OSError, match="too large"), file.open("a") as out:
        out.write('{"step": 2}\n')
    small_disk(0)
    assert file.read_text() == '{"step": 1}\n{"step'


def test_truncate_forgets_later_steps_and_torn_lines(tmp_path):
    found = RunDir(str(tmp_path), "run")
    found.create()
    for step in (1, 2, 3):
        found.append_metrics(step, {"a": 1.0})
        found.warnings.append({"step": step, "rule": "x"})
    with found.metrics.file.open("a") as out:
        out.write('{"step": 2, "to')
    found.truncate_metrics(2)
    assert [json.loads(line)["step"] for line in found.metrics.file.read_text().splitlines()] == [1, 2]
    assert [json.loads(line)["step"] for line in found.warnings.file.read_text().splitlines()] == [1, 2]
