"""Every verb has a file, and what must be quick imports neither torch nor other verbs' files."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from ppo_lightning import cli, verbs

FOLDER = Path(verbs.__file__).parent
SHARED = {"__init__", "say", "recipe_option"}
QUICK = [["--help"], ["config", "--config", "quickstart"], ["metrics"], ["recipes", "ls"]]
HEAVY = ("torch", "lightning", "transformers", "datasets", "wandb", "vllm")


def heavy_after(arguments, before="import sys"):
    code = (
        f"{before}\nfrom ppo_lightning.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        f"print('loaded:', *sorted(set({HEAVY!r}) & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.rpartition("loaded:")[2].split()


def test_table_and_files_agree():
    files = {path.stem.replace("_", "-") for path in FOLDER.glob("*.py") if path.stem not in SHARED}
    assert files == set(cli.VERBS)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_a_verb_has_its_help(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([verb, "--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert cli.VERBS[verb][1:] in shown
    module = importlib.import_module(f"ppo_lightning.verbs.{verb.replace('-', '_')}")
    assert callable(module.run)


@pytest.mark.parametrize("arguments", QUICK, ids=[" ".join(words) for words in QUICK])
def test_quick_verbs_leave_torch_alone(arguments):
    assert heavy_after(arguments) == []


def test_the_check_sees_torch():
    assert "torch" in heavy_after(
        ["--help"], before="import sys, types; sys.modules['torch'] = types.ModuleType('torch')"
    )


def test_overrides_may_stand_anywhere(capsys):
    assert cli.main(["config", "actor.lr=2e-6", "--config", "quickstart", "seed=7"]) == 0
    shown = capsys.readouterr().out
    assert "actor.lr: 2e-06" in shown
    assert "seed: 7" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config", "--confg=x"], "not understood: --confg=x (overrides read key=value; see config --help)"),
        (["config", "quick"], "not understood: quick (overrides read key=value; see config --help)"),
        (["model", "ls", "name", "seed=1"], "not understood: seed=1 (see model --help)"),
    ],
)
def test_what_is_not_understood_is_named(arguments, message, capsys):
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_verb_lists_them(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["trian"])
    assert ended.value.code == 2
    assert "reward-check" in capsys.readouterr().err
