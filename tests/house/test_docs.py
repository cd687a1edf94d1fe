"""Pages say what the code says: generated parts are fresh, every name exists, every link leads somewhere."""

import re
import sys

import pytest
from house_sources import ROOT, tracked

from ppo_lightning.algorithms import ADVANTAGES, POLICY_LOSSES
from ppo_lightning.config.schema import AGGREGATIONS, KL_ESTIMATORS, Config, leaves
from ppo_lightning.errors import ConfigError
from ppo_lightning.metrics.guide import SECTIONS, guide_to, matches
from ppo_lightning.metrics.registry import METRICS, lookup
from ppo_lightning.metrics.spec import MetricSpec
from ppo_lightning.rewards.scorers import SCORER_OF_SOURCE, SCORERS

sys.path.insert(0, str(ROOT / "docs"))
import generate

PAGES = sorted(name for name in tracked() if name.endswith(".md") and not name.startswith("tests/"))
TO_COME = {"warnings.md", "scaling.md", "memory.md", "reliability.md"}
"""Pages that others link to already; a page that is there need not be named here."""

METRICS_TO_COME = {
    "perf/padding_ratio",
    "training/equal_score_groups",
    "training/records_lost",
    "training/warnings",
}
"""Keys that the guide may speak of before they are declared."""

FOREIGN = {"docs/parity.md", "docs/from_verl.md", "docs/from_trl.md"}
"""Pages that name other programs' options."""

FOREIGN_TABLE = re.compile(r"^\| verl \|.*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
SECTION = "|".join(name for name in Config.__dataclass_fields__ if any(key.startswith(f"{name}.") for key in leaves()))
OPTION = re.compile(rf"(?<![\w./<-])((?:{SECTION})\.[a-z_]+(?:\.[a-z_]+)*)(?![\w/(])")
METRIC = re.compile(
    r"`((?:actor|critic|reward|rollout_corr|training|response_length|prompt_length|response|timing_s|timing_per_token_ms"
    r"|perf|variance_proxy|global_seqlen|val-core|val-aux)/[\w/<>@*.-]+)`"
)
PATH = re.compile(r"`((?:ppo_lightning|tests|docs|benchmarks|conf|recipes)/[\w./-]*\w)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[\w-]*)?\)")


def read(page):
    return (ROOT / page).read_text()


def test_generated_pages_are_fresh():
    pages = generate.present()
    stale = sorted(name for name, text in generate.expected(pages).items() if text != pages[name])
    assert stale == [], "run make docs"


@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        ("configuration.md", "`actor.lr`", "`actor.rate`"),
        ("metrics.md", "| `actor/kl_loss` |", "| `actor/kl` |"),
        ("algorithms.md", "[`rloo`](#rloo)", "[`loo`](#loo)"),
        ("images/dataflow.svg", "rm_scores", "scores"),
    ],
)
def test_a_stale_page_is_seen(page, old, new):
    pages = generate.present()
    assert old in pages[page]
    pages[page] = pages[page].replace(old, new)
    assert generate.expected(pages)[page] != pages[page]


def test_a_metric_without_an_entry_is_seen(monkeypatch):
    monkeypatch.setitem(METRICS, "actor/brand_new", MetricSpec("actor/brand_new", "MEAN", "x", "y", "-", "update"))
    with pytest.raises(ValueError, match="actor/brand_new"):
        generate.metrics_page()


def test_every_metric_has_one_entry_in_the_guide_and_none_speaks_of_nothing():
    assert {key: len(guide_to(key)) for key in METRICS if len(guide_to(key)) != 1} == {}
    for section in SECTIONS.values():
        for guide in section:
            for pattern in guide.keys:
                alone = type(guide)((pattern,), guide.meaning, guide.healthy, guide.action)
                assert any(matches(alone, key) for key in (*METRICS, *METRICS_TO_COME)), f"{pattern} matches no metric"
            assert guide.meaning
            assert guide.healthy
            assert guide.action
    assert [key for key, spec in METRICS.items() if not spec.absent_because.__doc__] == []


def test_every_metric_is_on_its_page():
    page = read("docs/metrics.md")
    assert [key for key in METRICS if f"| `{key}` |" not in page] == []


def missing_entries(page):
    """Return what of the tables of algorithms a page has no entry for."""
    headings = set(re.findall(r"^### `(\w+)`$", page, flags=re.MULTILINE))
    losses = set(re.findall(r"^### `(\w+)` loss$", page, flags=re.MULTILINE))
    told = {f"`{name}`" for name in (*AGGREGATIONS, *KL_ESTIMATORS)}
    options = {f"`{key}`" for one in (*ADVANTAGES.values(), *POLICY_LOSSES.values()) for key in one.options}
    absent = {name for name in told | options if name not in page and name.strip("`") not in page}
    return (ADVANTAGES.keys() ^ headings) | (POLICY_LOSSES.keys() ^ losses) | absent


def test_every_algorithm_has_an_entry():
    page = read("docs/algorithms.md")
    assert missing_entries(page) == set()
    assert missing_entries(page.replace("### `opo`\n", "")) == {"opo"}
    assert missing_entries(page + "\n### `ppo_clap` loss\n") == {"ppo_clap"}


def test_every_scorer_is_on_the_page_of_rewards():
    page = read("docs/rewards.md")
    assert [name for name in (*SCORERS, *SCORER_OF_SOURCE) if f"`{name}`" not in page] == []


def wrong_names(text):
    """Return the options, metrics and paths that a text names and that do not exist."""
    known = leaves()
    sections = {key.rpartition(".")[0] for key in known}
    free = {key for key in known if known[key].name in ("options", "adv_options", "loss_options")}
    wrong = [
        name
        for name in OPTION.findall(text)
        if name not in known | dict.fromkeys(sections) and name.rpartition(".")[0] not in free
    ]
    for key in METRIC.findall(text):
        try:
            if "*" not in key and not key.endswith("/"):
                lookup(key)
        except ConfigError:
            wrong += [key] if not any(known_key.startswith(f"{key}/") for known_key in METRICS) else []
    missing = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    return wrong + missing


@pytest.mark.parametrize("page", [page for page in PAGES if page not in FOREIGN])
def test_names_exist(page):
    assert wrong_names(FOREIGN_TABLE.sub("", read(page))) == []


def test_a_wrong_name_is_seen():
    text = "`actor.rate`, set critic.lrr=1, `actor/pg_los`, `tests/no_such.py`; `actor.lr`, `actor/lr`, x.actor.rate"
    assert wrong_names(text) == ["actor.rate", "critic.lrr", "actor/pg_los", "tests/no_such.py"]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    folder = (ROOT / page).parent
    assert [link for link in LINK.findall(read(page)) if not (folder / link).exists() and link not in TO_COME] == []


def test_every_page_is_in_the_navigation():
    named = re.findall(r"- (?:[\w ]+: )?(\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert len(named) == len(set(named))
    assert there - set(named) == set()
    assert set(named) - there <= TO_COME
