"""Recipes as data: compared, made from a run, fetched, versioned, and described to editors."""

import hashlib
import http.server
import json
import shutil
import threading
from functools import partial
from pathlib import Path

import jsonschema
import pytest
from omegaconf import OmegaConf

from ppo_lightning.cli import main
from ppo_lightning.config.json_schema import FILE, json_schema, to_text
from ppo_lightning.config.load import load, to_yaml
from ppo_lightning.errors import ConfigError
from ppo_lightning.recipes.diff import differences, resolve
from ppo_lightning.recipes.fetch import recipe_of_wandb
from ppo_lightning.recipes.minimal import from_run, minimal

ROOT = Path(__file__).parents[3]
RUN = Path(__file__).parent / "files" / "quickstart_run"
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
PRESETS = sorted((ROOT / "conf").glob("*/*.yaml"))


def content(path):
    return OmegaConf.to_container(OmegaConf.load(path))


def test_the_shipped_schema_is_fresh():
    made = (ROOT / "recipes" / FILE).read_text()
    assert made == to_text(), "run: python -m ppo_lightning config --json-schema > recipes/recipe.schema.json"


def test_every_recipe_and_preset_fits_the_schema():
    check = jsonschema.Draft202012Validator(json_schema())
    check.check_schema(json_schema())
    assert len(RECIPES) >= 4
    for path in (*RECIPES, *PRESETS):
        assert [error.message for error in check.iter_errors(content(path))] == [], path
    for path in RECIPES:
        assert path.read_text().startswith(f"# yaml-language-server: $schema={FILE}\n")


@pytest.mark.parametrize(
    "wrong",
    [
        {"actor": {"learning_rate": 1}},
        {"actor": {"lr": "fast"}},
        {"rollout": {"dtype": "float8"}},
        {"defaults": [{"algorithm": "ppoo"}]},
        {"expect": {"metric": "a"}},
        {"expect": {"metric": "a", "atleast": 1}},
        {"version": 99},
        {"data": {"val": 3}},
    ],
)
def test_the_schema_sees_mistakes(wrong):
    assert list(jsonschema.Draft202012Validator(json_schema()).iter_errors(wrong)) != []


def test_a_newer_recipe_is_refused(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("version: 1\nseed: 3\n")
    assert load(file).config.seed == 3
    file.write_text("version: 2\nseed: 3\n")
    with pytest.raises(ConfigError, match="version=2 must be a recipe format that this release reads, 1 to 1"):
        load(file)


def test_diff_by_hand():
    found = differences(resolve("gsm8k"), resolve("gsm8k_grpo"))
    assert [one.key for one in found] == [
        "name",
        "rollout.rollouts_per_prompt",
        "algorithm.adv_estimator",
        "update.sequences_per_minibatch",
        "update.sequences_per_microbatch",
        "actor.lr",
    ]
    estimator = found[2]
    assert (estimator.left, estimator.right) == ("gae", "grpo")
    assert (estimator.left_origin, estimator.right_origin) == ("preset algorithm=ppo", "preset algorithm=grpo")


def test_diff_verb_with_a_run(capsys):
    assert main(["recipes", "diff", "quickstart", str(RUN)]) == 0
    assert "are the same, option by option" in capsys.readouterr().out


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_the_shortest_recipe_gives_the_same_run(path, tmp_path):
    config = load(path).config
    file = tmp_path / "short.yaml"
    file.write_text("\n".join(minimal(config)))
    assert load(file).config == config
    whole = tmp_path / "whole.yaml"
    whole.write_text(to_yaml(config))
    assert len(file.read_text().splitlines()) < len(whole.read_text().splitlines()) / 3


def test_presets_are_named_and_not_repeated():
    lines = minimal(load("recipes/gsm8k_grpo.yaml").config)
    assert "  - algorithm: grpo" in lines
    assert not any("adv_estimator" in line for line in lines)


def test_a_preset_that_contradicts_is_not_named():
    lines = minimal(load("recipes/quickstart.yaml", ["rollout.rollouts_per_prompt=4"]).config)
    assert "  - algorithm: grpo" not in lines  # it says 8
    assert '  adv_estimator: "grpo"' in lines


def test_from_run_tells_what_was_measured():
    text = from_run(str(RUN))
    assert "# val-core/arithmetic/acc/mean@2: 0.1354 at the start, 0.875 at the end" in text
    assert "in 12 steps" in text
    with pytest.raises(ConfigError, match="must be a run directory"):
        from_run("nowhere")


def test_from_run_tells_the_machine(tmp_path):
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "run" / "environment.json").write_text(json.dumps({"device": "2 x CPU", "versions": "torch 9"}))
    assert "# hardware: 2 x CPU, torch 9." in from_run(str(tmp_path / "run"))


def test_a_wandb_configuration_becomes_a_recipe(tmp_path):
    config = load("recipes/gsm8k.yaml").config
    file = tmp_path / "a.yaml"
    file.write_text(recipe_of_wandb(OmegaConf.to_container(OmegaConf.create(to_yaml(config))), "wandb:me/it/1"))
    assert load(file).config == config
    with pytest.raises(ConfigError, match="is not an option"):
        recipe_of_wandb({"actor": {"speed": 3}}, "wandb:me/it/1")


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as a Hub does for one file of one repository."""

    text = b"seed: 5\nreward: {path: mine.py}\n"

    def do_HEAD(self):
        found = self.path == "/me/recipe/resolve/main/recipe.yaml"
        self.send_response(200 if found else 404)
        self.send_header("ETag", f'"{hashlib.sha256(self.text).hexdigest()}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Content-Length", str(len(self.text) if found else 0))
        self.end_headers()
        return found

    def do_GET(self):
        if self.do_HEAD():
            self.wfile.write(self.text)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=partial(server.serve_forever, 0.05), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield
    server.shutdown()
    server.server_close()


def test_get_from_a_hub(hub, tmp_path, capsys):
    target = tmp_path / "got.yaml"
    assert main(["recipes", "get", "hf:me/recipe", str(target)]) == 0
    assert target.read_bytes() == Hub.text
    shown = capsys.readouterr().out
    assert hashlib.sha256(Hub.text).hexdigest() in shown
    assert "it names code that a run would load: reward.path=mine.py" in shown
    assert main(["recipes", "get", "hf:me/recipe", str(target)]) == 2  # never written over
    assert main(["recipes", "get", "hf:me/other", str(tmp_path / "none.yaml")]) == 2
    assert "not fetched" in capsys.readouterr().err
    assert not (tmp_path / "none.yaml").exists()


def test_get_from_a_file_and_a_run(tmp_path, capsys):
    bad = tmp_path / "bad.yaml"
    bad.write_text("actor: {speed: 3}\n")
    assert main(["recipes", "get", str(bad), str(tmp_path / "a.yaml")]) == 2
    assert not (tmp_path / "a.yaml").exists()  # what is no recipe is not kept
    shutil.copytree(RUN, tmp_path / "run")
    inside = tmp_path / "run" / "wandb" / "offline-run-1"
    inside.mkdir(parents=True)
    assert main(["recipes", "get", str(inside), str(tmp_path / "b.yaml")]) == 0
    assert load(tmp_path / "b.yaml").config == load("recipes/quickstart.yaml").config
    assert main(["recipes", "get", "wandb:just/two", str(tmp_path / "c.yaml")]) == 2
    assert "must read wandb:ENTITY/PROJECT/RUN" in capsys.readouterr().err


def test_cp_points_editors_at_the_schema(tmp_path):
    target = tmp_path / "mine.yaml"
    assert main(["recipes", "cp", "quickstart", str(target)]) == 0
    schema = target.read_text().splitlines()[0].partition("$schema=")[2]
    assert Path(schema).read_text() == to_text()
    assert load(target).config == load("recipes/quickstart.yaml").config
