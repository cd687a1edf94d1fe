"""The tables fit their width, the picture fits its frame, the page loads nothing."""

import io
import re
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from ppo_lightning.config.load import load
from ppo_lightning.explain.flow import flow
from ppo_lightning.explain.page import page
from ppo_lightning.explain.picture import CHAR, picture, wrap
from ppo_lightning.explain.table import tables
from ppo_lightning.protocol.fields import FIELDS

RECIPES = [("recipes/quickstart.yaml", []), ("recipes/gsm8k.yaml", ["algorithm=optimal_token_baseline", "seed=2"])]


def step(recipe, overrides):
    return flow(load(recipe, overrides).config)


def printed(found, width, layout=None):
    shown = Console(width=width, color_system=None, record=True, file=io.StringIO())
    shown.print(tables(found, layout or width))
    return shown.export_text()


def broken(found, text):
    """Return names of fields, and of options in reasons, that are not in the text in one piece."""
    reasons = " ".join(touch.off for one in found.stages for touch in one.writes if touch.off and not one.off)
    options = {word for word in re.findall(r"[\w.]+", reasons) if "." in word.strip(".")}
    assert len(options) > 3
    return sorted((FIELDS.keys() | options) - set(re.findall(r"[\w.]+", text)))


@pytest.mark.parametrize("given", RECIPES)
def test_tables_fit_and_break_no_name(given):
    found = step(*given)
    for width in (80, 100, 129, 130, 200):
        text = printed(found, width)
        assert max(len(line) for line in text.splitlines()) <= width
        assert broken(found, text) == []
        assert {"on_train_batch_start", "training_step", "on_train_batch_end"} <= set(re.findall(r"\w+", text))


def test_the_wide_layout_would_break_names_on_80_columns():
    found = step(*RECIPES[0])
    assert broken(found, printed(found, 80, layout=200)) != []


@pytest.mark.parametrize("width", [372, 960])
@pytest.mark.parametrize("given", RECIPES)
def test_picture_stays_in_its_frame(given, width):
    root = ET.fromstring(picture(step(*given), "a <recipe> & co", width))
    found = [node for node in root.iter() if node.tag.endswith("}text") and "title" not in node.get("class", "")]
    ends = [float(node.get("x")) + len("".join(node.itertext())) * CHAR for node in found]
    assert len(found) > 60
    assert max(ends) <= width
    height = float(root.get("height"))
    assert max(float(node.get("y")) for node in found) < height
    boxes = [node for node in root.iter() if node.tag.endswith("}rect")]
    assert max(float(box.get("y")) + float(box.get("height")) for box in boxes) <= height


def test_picture_shows_what_is_off_and_why():
    text = picture(step(*RECIPES[0]), "quickstart")
    assert "does not run: algorithm.adv_estimator=grpo needs no critic" in text
    assert text.index("4 old_log_prob") < text.index("7 advantage") < text.index("9 settle")


def test_page_is_one_file():
    text = page(step(*RECIPES[0]), "quickstart")
    assert "<script" not in text
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|href)=", text)
    assert text.count("<tr") == 1 + 3 + len(FIELDS)  # heading, three layers, fields


def test_wrap_breaks_long_words_at_their_joints():
    assert wrap("a algorithm.adv_estimator=grpo b", 14) == ["a", "algorithm.adv_", "estimator=grpo", "b"]
    assert wrap("x" * 5, 3) == ["xxx", "xx"]
    assert wrap("", 3) == []
