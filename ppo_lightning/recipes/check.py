"""`recipes validate`: a recipe's options and expectations, and whether a recorded run met them. Imports no torch."""

from collections.abc import Callable
from pathlib import Path

from ppo_lightning.config.load import load
from ppo_lightning.config.schema import leaves
from ppo_lightning.config.validate import validate
from ppo_lightning.errors import ConfigError
from ppo_lightning.recipes.expect import check_expectations, evaluate, read_expectations
from ppo_lightning.recipes.shelf import find
from ppo_lightning.run_dir import METRICS, read_metrics


def check(recipe: str, run: str | None, say: Callable[[str], None]) -> int:
    """Check a recipe and, if a run is given, its expectations against it.

    Args:
        recipe: a file or the name of a shipped recipe.
        run: a run directory, or None.
        say: takes one line of the report.

    Returns:
        0, or 1 where an expectation is not met.

    Raises:
        ConfigError: naming every mistake in the recipe at once.
    """
    loaded = load(str(find(recipe)))
    problems: list[str] = []
    expectations = []
    for part in (lambda: validate(loaded.config), lambda: expectations.extend(read_expectations(loaded.expect))):
        try:
            part()
        except ConfigError as error:
            problems.append(str(error))
    problems += check_expectations(expectations, loaded.config)
    if problems:
        raise ConfigError("\n".join(problems))
    say(f"{recipe}: {len(leaves())} options ok, {len(expectations)} expectation(s)")
    if run is None:
        for one in expectations:
            say(f"  expects  {one}")
        return 0
    if not (Path(run) / METRICS).is_file():
        raise ConfigError(f"--run {run}: must be a run directory, which holds {METRICS}")
    outcomes = [evaluate(one, read_metrics(Path(run))) for one in expectations]
    for outcome in outcomes:
        say(f"  {'ok    ' if outcome.ok else 'FAILED'}  {outcome.expectation.metric}: {outcome.detail}")
    if not outcomes:
        say("  nothing is expected: add an `expect:` block")
    return 0 if all(outcome.ok for outcome in outcomes) else 1
