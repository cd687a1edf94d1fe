"""The token ledger on the console: of a recipe, and of a recorded step. Imports no torch."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ppo_lightning.config.schema import Config
from ppo_lightning.errors import ConfigError
from ppo_lightning.metrics.ledger import Ledger, ledger, spread_lengths
from ppo_lightning.report.ledger_words import ENTRIES
from ppo_lightning.report.numbers import printed
from ppo_lightning.report.recorded import Recorded

PIPE_WIDTH = 160
"""Columns where nobody's terminal sets them, so that no line is folded for `grep`."""


def recipe_ledger(
    config: Config,
    lengths: Sequence[int] = (),
    prompt_lengths: Sequence[int] = (),
    seconds: float | None = None,
    console: Console | None = None,
) -> None:
    """Print the ledger of a recipe's step: of given lengths, else of full, evenly spread and empty responses.

    Args:
        config: the recipe.
        lengths: response lengths, repeated over the B sequences.
        prompt_lengths: prompt lengths, repeated over the prompts; none: all as long as allowed.
        seconds: wall seconds of the step, for throughput.
        console: where to print.

    Raises:
        ConfigError: a length does not fit the recipe.
    """
    prompts, samples = config.data.prompts_per_step, config.rollout.rollouts_per_prompt
    count, width = prompts * samples, config.rollout.response_tokens
    _fit("--lengths", lengths, width, "rollout.response_tokens", least=0)
    _fit("--prompt-lengths", prompt_lengths, config.data.max_prompt_tokens, "data.max_prompt_tokens", least=1)
    given = prompt_lengths or [config.data.max_prompt_tokens]
    rows = [given[row // samples % len(given)] for row in range(count)]
    if lengths:
        columns = {"given lengths": [lengths[row % len(lengths)] for row in range(count)]}
    else:
        columns = {
            "all full": [width] * count,
            f"even, 1 to {width}": spread_lengths(count, 1, width),
            "half aborted": [width] * (count - count // 2) + [0] * (count // 2),
        }
    devices = config.trainer.devices * config.trainer.nodes
    found = {name: ledger(rows, responses, width, seconds, devices) for name, responses in columns.items()}
    console = console or pipe_console()
    console.print(
        f"{prompts} prompts x {samples} = {count} sequences, P = {config.data.max_prompt_tokens}, R = {width}, "
        f"{devices} device{'s' if devices > 1 else ''}"
        + ("" if seconds is None else f", {printed(seconds)} s per step"),
        soft_wrap=True,
    )
    _print_table(console, found)
    for note in (_minibatches(config), _no_time(seconds)):
        if note:
            console.print(note, soft_wrap=True)


def recorded_table(recorded: Recorded, console: Console | None = None) -> None:
    """Print the ledger of a recorded step beside what the run logged."""
    console = console or pipe_console()
    source = "the step's metrics" if recorded.lengths is None else "the rows of the step's dump"
    console.print(f"step {recorded.step}, from {source}", soft_wrap=True)
    _print_table(console, {"value": recorded.entries}, recorded.logged)
    if recorded.entries.trained_tokens is None:
        console.print("Masks may leave tokens out of the loss, and the dump does not tell how many.", soft_wrap=True)


def pipe_console() -> Console:
    """Return a console that folds lines on a terminal only."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def _print_table(console: Console, columns: dict[str, Ledger], logged: dict[str, float] | None = None) -> None:
    """Print the entries; how each is made only where it fits beside them on one line."""
    for explained in (True, False):
        table = _table(columns, logged, explained)
        if not explained or _width(console, table) <= console.width:
            console.print(table)
            return


def _width(console: Console, table: Table) -> int:
    return console.measure(table, options=console.options.update(width=1000)).maximum


def _table(columns: dict[str, Ledger], logged: dict[str, float] | None, explained: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("entry", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    if logged is not None:
        table.add_column("logged", justify="right", no_wrap=True)
    if explained:
        table.add_column("how", style="dim", no_wrap=True)
    for name, entry in ENTRIES.items():
        cells = [printed(getattr(one, name)) for one in columns.values()]
        if logged is not None:
            cells.append(printed(logged[name]) if name in logged else "")
        table.add_row(entry.label, *cells, *([entry.formula] if explained else []))
    return table


def _fit(option: str, lengths: Sequence[int], width: int, key: str, least: int) -> None:
    wrong = [length for length in lengths if not least <= length <= width]
    if wrong:
        raise ConfigError(f"{option} must lie in {least}..{width} ({key}) - got {wrong[0]}")


def _minibatches(config: Config) -> str | None:
    count = config.data.prompts_per_step * config.rollout.rollouts_per_prompt
    mini = config.update.sequences_per_minibatch or count
    if mini >= count:
        return None
    parts = -(-count // mini)
    return (
        f"The update takes {parts} mini-batches of {mini} sequences: a token weighs 1 / the tokens of its own "
        f"mini-batch, about {parts} times what is said here of the whole step."
    )


def _no_time(seconds: float | None) -> str | None:
    return None if seconds is not None else "Throughput needs the time of a step: --seconds 12"
