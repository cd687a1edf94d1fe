"""What counts as a secret, and that it is masked in text, JSON, addresses and tracebacks."""

import dataclasses
import json
import sys
import threading
import traceback

import pytest

from ppo_lightning import secrets
from ppo_lightning.cli import main
from ppo_lightning.config.load import load
from ppo_lightning.config.schema import Config
from ppo_lightning.errors import ConfigError
from ppo_lightning.secrets import MASK, guard_tracebacks, learn, redact

CANARY = 'cana"ry-3f9\\a1'


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(secrets, "_learnt", set())


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "OPENAI_KEY",
        "GITHUB_PAT",
        "MYAPIKEY",
        "TOKEN",
    ],
)
def test_variables_with_secrets(monkeypatch, name):
    monkeypatch.setenv(name, CANARY)
    assert redact(f"a {CANARY} b") == f"a {MASK} b"
    assert "cana" not in redact(json.dumps({"x": CANARY}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "parallelism"),
        ("KEYBOARD", "qwertz-layout"),
        ("API_KEY", "short"),
        ("SSH_KEY", "/dev/null"),
    ],
)
def test_variables_without(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert redact(f"a {value} b") == f"a {value} b"


def with_reward(**reward):
    return dataclasses.replace(Config(), reward=dataclasses.replace(Config().reward, **reward))


def test_options_and_what_a_reward_is_given(monkeypatch):
    monkeypatch.setenv("JUDGE_URL_PART", "given-canary")
    config = with_reward(
        options={"api_key": "option-canary", "nested": [{"password": "nested-canary"}], "answer_key": "solution_text"},
        environment=["JUDGE_URL_PART"],
    )
    text = "option-canary nested-canary given-canary solution_text"
    assert redact(text) == text
    learn(config)
    assert redact(text) == f"{MASK} {MASK} {MASK} solution_text"


def test_addresses():
    assert redact("http://me:pass@host:80/x and http://host/x") == f"http://{MASK}@host:80/x and http://host/x"


def test_uncaught_errors(monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", CANARY)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    guard_tracebacks()

    def fail():
        raise RuntimeError(f"401 for {CANARY}")

    try:
        fail()
    except RuntimeError:
        assert CANARY in traceback.format_exc()  # what would be printed otherwise
        sys.excepthook(*sys.exc_info())
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    shown = capsys.readouterr().err
    assert shown.count(f"RuntimeError: 401 for {MASK}") == 2
    assert "in fail" in shown
    assert CANARY not in shown


def test_messages_and_listings_of_the_command_line(monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "plain-canary")
    assert main(["config", "actor.lr=plain-canary"]) == 2
    assert main(["config", "reward.options.api_key=option-canary", "model.path=plain-canary"]) == 0
    shown = capsys.readouterr()
    assert "canary" not in shown.out + shown.err
    assert "actor.lr" in shown.err
    assert MASK in shown.out


@pytest.mark.parametrize("key", ["name", "model.path", "data.train", "reward.options.x", "logging.project"])
@pytest.mark.parametrize("variable", ["WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "MY_SECRET"])
def test_a_secret_variable_cannot_be_put_into_an_option(key, variable, monkeypatch):
    monkeypatch.setenv(variable, CANARY)
    with pytest.raises(ConfigError, match="would copy a secret"):
        load(None, [f"{key}=${{oc.env:{variable}}}"])


def test_another_variable_can(monkeypatch):
    monkeypatch.setenv("SCRATCH", "somewhere")
    assert load(None, ["output_dir=${oc.env:SCRATCH}"]).config.output_dir == "somewhere"
