"""The flow of a step as tables as wide as the terminal; in a pipe 100 columns of plain text. Imports no torch."""

import sys

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ppo_lightning.explain.flow import FieldView, Flow, StageView, Touch, shape

PIPE_WIDTH, WIDE, WIDEST = 100, 130, 200
OFF, NAME, QUIET = "dim", "bold", "italic"


def console() -> Console:
    """Return a console for stdout."""
    if sys.stdout.isatty():
        terminal = Console()
        return Console(width=min(terminal.width, WIDEST))
    return Console(width=PIPE_WIDTH, color_system=None, highlight=False)


def tables(flow: Flow, width: int) -> RenderableType:
    """Return sizes, the stages and the fields, one below the other; narrow terminals get fewer columns."""
    sizes = ", ".join(f"{axis} = {size}" for axis, size in flow.axes.items())
    legend = Text(f"{sizes}\nB sequences, n per prompt, P prompt tokens, R response tokens, S both", style=QUIET)
    return Group(legend, Text(), _stages(flow, width >= WIDE), _fields(flow, width >= WIDE))


def _stages(flow: Flow, wide: bool) -> Table:
    table = _table("Stages of a step")
    table.add_column("#")
    table.add_column("stage", min_width=12)
    if wide:
        table.add_column("reads", ratio=4)
    table.add_column("writes" if wide else "reads and writes", ratio=5)
    hook = ""
    for stage in flow.stages:
        if wide and stage.hook != hook:
            hook = stage.hook
            table.add_row("", Text(hook, style=QUIET, no_wrap=True))
        name = Text(stage.name, style=OFF if stage.off else NAME)
        table.add_row(str(stage.number), name, *(_wide_cells(stage) if wide else [_narrow_cell(stage)]))
    return table


def _wide_cells(stage: StageView) -> tuple[Text, Text]:
    if stage.off:
        return Text(), Text(f"does not run: {stage.off}", style=OFF)
    written = Text("\n").join([Text(line) for line in (_names(stage.writes),) if line] + _missing(stage.writes))
    return Text(_names(stage.reads)), written


def _narrow_cell(stage: StageView) -> Text:
    if stage.off:
        return Text(f"does not run: {stage.off}", style=OFF)
    lines = [Text(stage.hook, style=QUIET)]
    lines += [
        Text(f"{way}: {names}")
        for way, names in (("reads", _names(stage.reads)), ("writes", _names(stage.writes)))
        if names
    ]
    return Text("\n").join(lines + _missing(stage.writes))


def _names(touches: tuple[Touch, ...]) -> str:
    return ", ".join(touch.field.name for touch in touches if touch.off is None)


def _missing(touches: tuple[Touch, ...]) -> list[Text]:
    return [Text(f"not {touch.field.name}: {touch.off}", style=OFF) for touch in touches if touch.off is not None]


def _fields(flow: Flow, wide: bool) -> Table:
    table = _table("Fields of the batch")
    table.add_column("field" if wide else "field, type, lifetime", no_wrap=True)
    for title in ("axes, type", "lifetime") if wide else ():
        table.add_column(title, no_wrap=True)
    table.add_column("meaning, or why it is not there", ratio=1)
    layer = ""
    for view in flow.fields:
        if view.field.layer != layer:
            layer = view.field.layer
            table.add_row(Text(layer, style=QUIET))
        table.add_row(*_row(view, wide))
    return table


def _row(view: FieldView, wide: bool) -> tuple[Text, ...]:
    style = OFF if view.off else ""
    meaning = Text(f"no: {view.off}" if view.off else view.field.doc, style=style)
    name = Text(f" {view.field.name}", style=style or NAME)
    cells = Text(shape(view.field), style=style), Text("" if view.off else view.lifetime, style=style)
    if wide:
        return (name, *cells, meaning)
    return Text("\n   ").join([name, *(cell for cell in cells if cell)]), meaning


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style=NAME, box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
