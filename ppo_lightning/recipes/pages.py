"""docs/from_verl.md, docs/from_trl.md and the JSON Schema of recipes, written from the tables. Imports no torch.

`make docs` (`python -m ppo_lightning.recipes.pages .`) writes them; tests compare.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ppo_lightning.config.json_schema import FILE, to_text
from ppo_lightning.config.load import get
from ppo_lightning.config.schema import Config, leaves
from ppo_lightning.recipes import trl_options, verl_options
from ppo_lightning.recipes.verl_missing import NO_EFFECT, WITHOUT
from ppo_lightning.recipes.verl_options import LEGACY, OPTIONS, defaults
from ppo_lightning.recipes.verl_rules import SKIP, Settings

GENERATED = "Written by `make docs` from the tables in `ppo_lightning/recipes/`: edit those."
SECTIONS = ("actor_rollout_ref.model", "actor_rollout_ref.rollout", "actor_rollout_ref.actor")


def from_verl() -> str:
    """Return the page on verl."""
    lines = [
        f"# From verl {verl_options.VERSION}",
        "",
        GENERATED,
        "",
        "```",
        "python -m ppo_lightning recipes import-verl train.sh --output my.yaml   # calls verl.trainer.main_ppo",
        "python -m ppo_lightning recipes import-verl config.yaml trainer.total_epochs=2",
        "python -m ppo_lightning recipes import-verl algorithm.adv_estimator=grpo data.train_batch_size=256",
        "```",
        "",
        "The script is read, not run. What was given is written, and besides every default of verl that differs from",
        "ours (in bold below), so that the recipe does what verl does. What has no counterpart is listed, with its",
        "reason, at the top. Batch keys and metric keys are verl's; [parity.md](parity.md) compares the functions.",
        "",
    ]
    section, settings = "", Settings({}, defaults())
    order = list(dict.fromkeys(_section(option.verl) for option in OPTIONS))
    for option in sorted(OPTIONS, key=lambda option: order.index(_section(option.verl))):
        head = _section(option.verl)
        if head != section:
            section = head
            lines += ["", f"## `{section}`", "", "| verl | its default | here | our default | what differs |"]
            lines.append("|---|---|---|---|---|")
        ours = get(Config(), option.ours)
        default = _shown(option.default)
        value = option.rule(option.default, settings)
        mark = "" if value is SKIP or value == ours else "**"
        name = option.verl.removeprefix(f"{section}.")
        lines.append(f"| `{name}` | {mark}{default}{mark} | `{option.ours}` | {_shown(ours)} | {_cell(option.note)} |")
    lines += ["", "## Old keys that verl still takes", "", "| old | read as |", "|---|---|"]
    lines += [f"| `{old}` | `{new}` |" for old, new in LEGACY.items()]
    lines += ["", f"## No effect in verl {verl_options.VERSION}", "", "| verl | what decides |", "|---|---|"]
    lines += [f"| `{key}` | {why} |" for key, why in NO_EFFECT.items()]
    lines += ["", "## No counterpart", "", "`*` stands for any text; the first line that fits holds.", ""]
    lines += ["| verl | why |", "|---|---|", *(f"| `{pattern}` | {_cell(why)} |" for pattern, why in WITHOUT)]
    only = sorted(leaves().keys() - {option.ours for option in OPTIONS})
    lines += ["", "## Only here", "", ", ".join(f"`{key}`" for key in only), ""]
    return "\n".join(lines)


def from_trl() -> str:
    """Return the page on TRL."""
    lines = [
        f"# From TRL {trl_options.VERSION}: GRPOConfig",
        "",
        GENERATED,
        "",
        "Start from `recipes cp gsm8k_grpo my.yaml` (preset `algorithm: grpo`) and set what differs. TRL counts",
        "completions per device, we count prompts and sequences over all devices.",
        "",
        "| GRPOTrainer | here | what differs |",
        "|---|---|---|",
        *(f"| `{one.trl}` | {_keys(one.ours)} | {_cell(one.note)} |" for one in trl_options.ARGUMENTS),
        "",
        "| GRPOConfig | its default | here | our default | what differs |",
        "|---|---|---|---|---|",
    ]
    for one in trl_options.OPTIONS:
        defaults = ", ".join(_shown(get(Config(), key)) for key in one.ours.split(", ") if key)
        cells = f"{one.default} | {_keys(one.ours)} | {defaults or '-'} | {_cell(one.note)}"
        lines.append(f"| `{one.trl}` | {cells} |")
    return "\n".join([*lines, ""])


PAGES: dict[str, Callable[[], str]] = {
    "docs/from_verl.md": from_verl,
    "docs/from_trl.md": from_trl,
    f"recipes/{FILE}": to_text,
}
"""File below the repository's root -> what it holds."""


def _section(key: str) -> str:
    return next((name for name in SECTIONS if key.startswith(f"{name}.")), key.partition(".")[0])


def _shown(value: Any) -> str:
    return "null" if value is None else _cell(str(value).lower() if isinstance(value, bool) else str(value))


def _keys(ours: str) -> str:
    return ", ".join(f"`{key}`" for key in ours.split(", ")) if ours else "-"


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or "-"


def main(root: str) -> None:
    """Write the files below the repository's root."""
    for name, page in PAGES.items():
        (Path(root) / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
