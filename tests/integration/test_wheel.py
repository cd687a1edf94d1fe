"""A stranger's path: the wheel in a new environment, an empty folder, no repository in sight, no network."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN_LOSS = """
def plain(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights=None):
    return -advantages * log_prob, {"actor/ppo_kl": (old_log_prob - log_prob).detach()}
"""


def call(*command, cwd=ROOT):
    """Run a command without this repository on its path and return its output."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    env |= {"PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1"}
    texts = [*map(str, command)]
    done = subprocess.run(texts, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this repository."""
    folder = tmp_path_factory.mktemp("wheel")
    code, told = call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    assert code == 0, told
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A new environment that holds the wheel; what it depends on is taken from the one that runs the tests."""
    folder = tmp_path_factory.mktemp("environment")
    code, told = call(sys.executable, "-m", "venv", "--without-pip", folder)
    assert code == 0, told
    python = folder / "bin" / "python"
    code, told = call(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel)
    assert code == 0, told
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return folder


def test_the_wheel_holds_everything_that_the_package_reads(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    sources = {str(p.relative_to(ROOT)) for p in (ROOT / "ppo_lightning").rglob("*") if p.is_file()}
    sources = {name for name in sources if "__pycache__" not in name}
    shipped = {
        f"ppo_lightning/_shipped/{path.relative_to(ROOT)}"
        for folder in ("conf", "recipes")
        for path in (ROOT / folder).rglob("*.yaml")
    }
    assert len(shipped) > 20
    assert sorted((sources | shipped) - held) == []
    assert [name for name in held if name.startswith(("tests/", "docs/", "benchmarks/"))] == []


def test_a_stranger_trains_in_an_empty_folder(installed, tiny_model, tmp_path):
    command = installed / "bin" / "ppo-lightning"
    code, told = call(installed / "bin" / "python", "-c", "import ppo_lightning as p; print(p.__file__)", cwd=tmp_path)
    assert str(installed) in told
    code, told = call(command, "recipes", "ls", cwd=tmp_path)
    assert code == 0, told
    assert "quickstart" in told
    code, told = call(command, "recipes", "cp", "quickstart", "my.yaml", cwd=tmp_path)
    assert code == 0, told
    (tmp_path / "my_loss.py").write_text(OWN_LOSS)
    given = [f"model.path={tiny_model}", "trainer.steps=2", "data.prompts_per_step=2", "reward.max_error_share=1.0"]
    given += ["actor.policy_loss=my_loss:plain", "data.max_train_rows=8", "data.max_val_rows=4", "reward.workers=1"]
    code, told = call(command, "fit", "--config", "my.yaml", *given, cwd=tmp_path)
    assert code == 0, told
    folder = tmp_path / "runs" / "quickstart"
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps] == [0, 1, 2]
    assert steps[2]["actor/ppo_kl"] == 0.0
    assert (folder / "checkpoints" / "step_000002" / "actor" / "model.safetensors").is_file()
    (folder / "report.html").unlink()  # the run left one; the verb makes it again
    code, told = call(command, "report", folder, cwd=tmp_path)
    assert code == 0, told
    assert (folder / "report.html").stat().st_size > 10_000
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"my.yaml", "my_loss.py", "runs"}


def test_without_the_shipped_files_there_is_no_recipe(installed, tmp_path):
    """The negative control: nothing comes from this repository by a relative path."""
    (shipped,) = installed.glob("lib/python*/site-packages/ppo_lightning/_shipped")
    hidden = shipped.rename(shipped.with_name("_hidden"))
    code, told = call(installed / "bin" / "ppo-lightning", "fit", "--config", "quickstart", cwd=tmp_path)
    hidden.rename(shipped)
    assert code == 2, told
    assert "no such file" in told
