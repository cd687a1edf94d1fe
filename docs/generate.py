"""Write the pages and parts of pages that come from tables: python docs/generate.py [--check] (`make docs`).

Whole files: metrics.md, configuration.md, images/dataflow.svg. Elsewhere what stands between `<!-- generated: NAME -->`
and `<!-- end -->`. Imports no torch. With --check nothing is written; the exit code is 1 if anything is stale.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, cast

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from draw import dataflow  # noqa: E402

from ppo_lightning.algorithms import ADVANTAGES, POLICY_LOSSES  # noqa: E402
from ppo_lightning.config.schema import Config  # noqa: E402
from ppo_lightning.metrics import advice  # noqa: E402
from ppo_lightning.metrics.guide import SECTIONS, guide_to, matches  # noqa: E402
from ppo_lightning.metrics.registry import METRICS  # noqa: E402
from ppo_lightning.metrics.spec import Guide, MetricSpec, logged  # noqa: E402
from ppo_lightning.protocol.fields import FIELDS  # noqa: E402

NOTE = "<!-- Written by `make docs` from the package's tables: edit those. -->\n\n"
BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

METRICS_INTRODUCTION = """# Metrics

Every key that a run can log, with what is counted and what it is divided by; what it should look like; and what to do
when it does not. `metrics.jsonl` holds one line per step; W&B and TensorBoard get the same keys, which are verl's.

```
python -m ppo_lightning metrics --config my.yaml      # which of these your configuration logs, and why not the others
python -m ppo_lightning metrics actor/pg_clipfrac     # one of them
```

*Reduction* says how micro-batches and ranks are joined. MEAN carries a sum and a count, so it is the mean over the
data, not a mean of means. SUM, MIN and MAX are what they say. LOSS is summed over micro-batches (each is a share of the
global mini-batch) and averaged over mini-batches. STD, PEARSON, EXPLAINED_VARIANCE and PURE_NOISE are merged from
moments. `<...>` stands for a name or a number. A value that is not finite is `null` in metrics.jsonl; a metric that
nothing was counted for in a step is absent.

Two keys with different denominators are two metrics: `response_length/*` counts aborted rows,
`response_length_non_aborted/*` does not; GRPO's group deviation is the sample's, validation's `std@<N>` the
population's.

The ranges are rules of thumb from training language models. They tell where to look first.
"""
SYMPTOMS = (
    (
        "the score does not move",
        "`critic/advantages/max`, the responses in rollouts/",
        "0: a prompt's responses score alike; else the reward cannot read them (`reward-check`), or `actor.lr` is low",
    ),
    (
        "the score rises, then falls apart",
        "`actor/entropy`, `actor/grad_norm`, `training/rollout_probs_diff_mean`",
        "too high a learning rate; no entropy left; stale weights in the engine",
    ),
    (
        "the score rises, validation does not",
        "`val-core/<data_source>/<variable>/mean@<N>`, the best responses in rollouts/",
        "a gamed reward, or few prompts seen often",
    ),
    (
        "responses grow to the limit",
        "`response_length/clip_ratio`, `actor/entropy`",
        "length is not punished, or the model never stops",
    ),
    (
        "the entropy goes to 0",
        "`actor/pg_clipfrac`, `actor/ppo_kl`",
        "updates too large, or the clip too tight from above",
    ),
    (
        "the gradient norm jumps",
        "`critic/score/max`, `training/nonfinite_values`",
        "a reward out of scale, or one strange batch",
    ),
    ("the critic does not help", "`critic/vf_explained_var`", "too slow: `critic.lr`, `critic.warmup_steps`"),
    ("steps are slow", "`timing_s/gen`, `timing_s/update`, `timing_s/reward`", "[performance.md](performance.md)"),
)
CONFIGURATION_INTRODUCTION = """# Configuration

Every option with its type and default. A value comes from the defaults below, then the presets that a recipe lists,
then the recipe, then the command line (`key=value`, or `group=preset`); the last one wins.

```
python -m ppo_lightning config --config my.yaml       # every value of a run, and where it comes from
```

Unknown keys, wrong types and options that do not go together are reported at once, before any model loads.
"""


def metrics_page() -> str:
    """Return docs/metrics.md.

    Raises:
        ValueError: a metric has no entry in the guide, or several entries speak of it.
    """
    wrong = [key for key in METRICS if len(guide_to(key)) != 1]
    if wrong:
        raise ValueError(f"metrics/guide_*.py must have one entry for each metric - got none or several for {wrong}")
    page = METRICS_INTRODUCTION + "\n## Where to look first\n\n"
    page += table(("what you see", "look at", "usually"), SYMPTOMS)
    for title, section in SECTIONS.items():
        page += f"\n## {title}\n" + "".join(_metric_entry(one) for one in section if _specs(one))
    return NOTE + page


def _specs(guide: Guide) -> list[MetricSpec]:
    return [spec for key, spec in METRICS.items() if matches(guide, key)]


def _metric_entry(guide: Guide) -> str:
    specs = _specs(guide)
    heading = ", ".join(f"`{key}`" for key in guide.keys[:2]) + (", ..." if len(guide.keys) > 2 else "")
    columns = ("key", "reduction", "numerator", "denominator", "unit", "stage", "absent when")
    rows = [
        (f"`{s.key}`", s.reduction, s.numerator, _dash(s.denominator), _dash(s.unit), s.stage, _absence(s))
        for s in specs
    ]
    return (
        f"\n### {heading}\n\n{guide.meaning}\n\n{table(columns, rows)}\n"
        f"**Healthy.** {guide.healthy}\n\n**Otherwise.** {guide.action}\n"
    )


def _absence(spec: MetricSpec) -> str:
    return "never" if spec.absent_because is logged else " ".join((spec.absent_because.__doc__ or "").split())


def _dash(text: str) -> str:
    return "none" if text == "-" else text


def configuration_page() -> str:
    """Return docs/configuration.md."""
    page = CONFIGURATION_INTRODUCTION
    top = [item for item in fields(Config) if not _is_section(item)]
    page += "\n## Top level\n\n" + _options("", top)
    for item in fields(Config):
        if _is_section(item):
            section = cast(type, item.type)
            page += f"\n## `{item.name}`\n\n{(section.__doc__ or '').strip()}\n\n"
            page += _options(f"{item.name}.", fields(section))
    presets = sorted((ROOT / "conf").glob("*/*.yaml"))
    page += "\n## Presets\n\nA preset sets several options; a recipe lists presets, the command line replaces them.\n\n"
    page += table(("preset", "what"), ((f"`{file.parent.name}={file.stem}`", _header(file)) for file in presets))
    recipes = sorted((ROOT / "recipes").glob("*.yaml"))
    page += "\n## Recipes\n\n" + table(("recipe", "what"), ((f"`{file.stem}`", _first(file)) for file in recipes))
    return NOTE + page


def _is_section(item: Field[Any]) -> bool:
    return hasattr(item.type, "__dataclass_fields__")


def _options(prefix: str, items: Iterable[Field[Any]]) -> str:
    rows = []
    for item in items:
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        kind = item.type.__name__ if isinstance(item.type, type) else str(item.type)
        if item.metadata["choices"]:
            kind = "one of " + ", ".join(map(str, item.metadata["choices"]))
        shown = "null" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
        shown = f"`{shown}`" if shown else "empty"
        rows.append((f"`{prefix}{item.name}`", kind.replace("typing.", ""), shown, item.metadata["doc"]))
    return table(("option", "type", "default", "meaning"), rows)


def _header(file: Path) -> str:
    lines = [line.lstrip("# ") for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return " ".join(lines) or "sets the options in the file"


def _first(file: Path) -> str:
    return file.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")


def fields_block() -> str:
    """Return the table of batch keys."""
    rows = (
        (f"`{one.name}`", one.layer, " x ".join(one.axes) or "one value", one.dtype, one.stage, one.doc)
        for one in FIELDS.values()
    )
    return table(("key", "layer", "axes", "type", "written by", "meaning"), rows)


def estimators_block() -> str:
    """Return the table of advantage estimators."""
    rows = (
        (
            f"[`{name}`](#{name})",
            "yes" if one.critic else "no",
            "yes" if one.grouped else "no",
            ", ".join(f"`{key}`" for key in one.options) or "none",
            ", ".join(f"`{key}`" for key in (*one.reads, *one.optional)),
        )
        for name, one in ADVANTAGES.items()
    )
    return table(("estimator", "critic", "needs n > 1", "options", "reads"), rows)


def losses_block() -> str:
    """Return the table of policy losses."""
    rows = (
        (
            f"[`{name}`](#{name}-loss)",
            ", ".join(f"`{key}`" for key in one.options) or "none",
            one.loss_agg_mode or "`update.loss_agg_mode`",
            "yes" if one.ratio else "no",
            "the mini-batch" if one.selection else "nothing",
        )
        for name, one in POLICY_LOSSES.items()
    )
    return table(("policy loss", "options", "aggregated by", "holds the ratio to old", "picks tokens over"), rows)


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    names = list(columns)
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


FILES: dict[str, Callable[[], str]] = {
    "metrics.md": metrics_page,
    "configuration.md": configuration_page,
    "images/dataflow.svg": dataflow,
}
BLOCKS: dict[str, Callable[[], str]] = {
    "fields": fields_block,
    "estimators": estimators_block,
    "losses": losses_block,
    "warnings": advice.table,
}


def present() -> dict[str, str]:
    """Return the text of every page that is there, and an empty one for a generated file that is not."""
    names = [*FILES, *(path.name for path in sorted(HERE.glob("*.md")) if path.name not in FILES)]
    return {name: (HERE / name).read_text(encoding="utf-8") if (HERE / name).exists() else "" for name in names}


def expected(pages: Mapping[str, str]) -> dict[str, str]:
    """Return what the pages must hold, with the hand-written parts as they are."""
    return {
        name: FILES[name]() if name in FILES else BLOCK.sub(lambda m: f"{m[1]}\n{BLOCKS[m['name']]()}\n{m[3]}", text)
        for name, text in pages.items()
    }


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say which pages are stale instead of writing them")
    check = parser.parse_args().check
    pages = present()
    stale = {name: text for name, text in expected(pages).items() if text != pages[name]}
    for name, text in stale.items():
        if not check:
            (HERE / name).parent.mkdir(exist_ok=True)
            (HERE / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"docs/{name}: {'stale, run make docs' if check else 'written'}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
