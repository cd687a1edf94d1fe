"""Compare the splits of a recipe's update and say what depends on them."""

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from ppo_lightning.build import build_module
from ppo_lightning.config.load import Loaded, get
from ppo_lightning.config.schema import Config
from ppo_lightning.invariance.batch import batch_for, small
from ppo_lightning.invariance.measure import Measured, measure, prepare, write_log_probs
from ppo_lightning.invariance.ranks import measure_on_ranks
from ppo_lightning.invariance.splits import Difference, Split, applied, culprit, difference, splits, whole
from ppo_lightning.models.load import load_tokenizer
from ppo_lightning.module import PPOModule
from ppo_lightning.protocol.data_proto import DataProto

INVARIANT, DEPENDS = 0, 1


class Check:
    """A recipe's models and rows, and the step with all rows at once that every split is compared with."""

    def __init__(self, config: Config, module: PPOModule, rows: DataProto) -> None:
        self.config, self.module, self.rows = config, module, rows
        self.longest = int(rows.batch["attention_mask"].sum(-1).max())
        self.at_once: tuple[Config, Measured] | None = None

    def splits(self) -> list[Split]:
        """Return the splits of this recipe's rows."""
        return list(splits(self.config, len(self.rows), self.longest))

    def compare(self, config: Config, split: Split) -> Difference:
        """Run one split of a configuration and compare it with all rows at once."""
        expected = self._whole(config)
        run = measure_on_ranks if split.ranks else measure
        return difference(run(self.rows, self.module, applied(config, split)), expected)

    def _whole(self, config: Config) -> Measured:
        if self.at_once is None or self.at_once[0] != config:
            self.at_once = (config, measure(self.rows, self.module, whole(config, len(self.rows))))
        return self.at_once[1]


def check_invariance(loaded: Loaded, path: str | None, layers: int, say: Callable[[str], None]) -> int:
    """Run a recipe's update once per split; return 0 if the results are the same, 1 if something depends on the split.

    Args:
        loaded: the recipe.
        path: a recorded batch, or None to make one.
        layers: decoder layers to keep; 0: all.
        say: takes what is printed.
    """
    config = small(loaded.config)
    module = build_module(config, load_tokenizer(config.model))
    rows = batch_for(path, module, config, say)
    config = small(loaded.config, rows)
    module.config = config
    prepare(module, layers)
    write_log_probs(rows, module, whole(config, len(rows)))
    check = Check(config, module, rows)
    found = [(split, check.compare(config, split)) for split in check.splits()]
    for line in _table(found):
        say(line)
    wrong = [(split, apart) for split, apart in found if not apart.invariant]
    if not wrong:
        say(f"invariant: {len(found)} splits give the step of all rows at once")
        return INVARIANT
    split = wrong[0][0]
    keys = ", ".join(dict.fromkeys(split.key for split, _ in wrong))
    say(f"depends on {keys}: {len(wrong)} of {len(found)} splits differ")
    cause = culprit(config, split, check.compare)
    if cause is None:
        say("no single option of the loss explains it")
    else:
        say(f"because of {cause}={get(loaded.config, cause)}: without it, {split.name}: invariant")
    return DEPENDS


def _table(found: list[tuple[Split, Difference]]) -> list[str]:
    """Return the lines of the table, as wide as the terminal."""
    models = list(found[0][1].gradients)
    table = Table(title="largest relative difference from all rows at once", title_justify="left")
    table.add_column("split")
    for model in models:
        table.add_column(f"{model} loss", justify="right")
        table.add_column(f"{model} gradient", justify="right")
    table.add_column("metrics", justify="right")
    table.add_column("which")
    table.add_column("verdict")
    for split, apart in found:
        numbers = [f"{part:.1e}" for model in models for part in (apart.losses.get(model, 0.0), apart.gradients[model])]
        metric = apart.metrics[1] if apart.metrics[0] > 0 else ""
        verdict = "invariant" if apart.invariant else "DEPENDS"
        table.add_row(split.name, *numbers, f"{apart.metrics[0]:.1e}", metric, verdict)
    console = Console()
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip().splitlines()
