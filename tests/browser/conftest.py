"""A headless Chromium for the pages; without one these tests are skipped, and say so."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from chromium import Chromium, find_chromium
from made_run import make_run

from ppo_lightning.report.page import ledger_html, report_html
from ppo_lightning.report.reading import read_runs

REASON = "no Chromium here: apt-get install chromium, or CHROMIUM=/path/to/it"


def pytest_collection_modifyitems(items):
    for item in items:
        if "browser" in item.path.parts:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser with one page."""
    path = find_chromium()
    if path is None:
        pytest.skip(REASON)
    opened = Chromium(path, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Addresses of pages by name: a short run, a long one, both compared, one that died at once, and the ledger."""
    folder = tmp_path_factory.mktemp("pages")
    short = make_run(folder / "short", 12, prompts=3, samples=4, validate_every=4, planned=20)
    long = make_run(folder / "long", 1500, prompts=1, samples=2, dump_every=100, seed=1, lr=2e-5)
    dead = folder / "dead"
    dead.mkdir()
    (dead / "config.yaml").write_text("name: dead\n")
    (dead / "failure.txt").write_text("EngineError: no <engine>\n")
    settings = {
        "prompts": 2, "n": 2, "prompt_width": 4, "prompt_shortest": 2, "prompt_longest": 3, "response_width": 8,
        "response_shortest": 4, "response_longest": 8, "aborted": 0, "seconds": 5.0, "devices": 2,
    }  # fmt: skip
    texts = {
        "short": report_html(read_runs([short])),
        "long": report_html(read_runs([long])),
        "compared": report_html(read_runs([short, long])),
        "dead": report_html(read_runs([dead])),
        "ledger": ledger_html(settings),
    }
    addresses = {}
    for name, text in texts.items():
        file = folder / f"{name}.html"
        file.write_text(text, encoding="utf-8")
        addresses[name] = file.as_uri()
    return addresses


@pytest.fixture(scope="module")
def js():
    """Return a function that quotes a Python value as JavaScript."""
    return json.dumps
