"""A step as a picture: hooks around stages, fields on the arrows between them, what is off in grey. Imports no torch.

SVG without a script or a font of its own; it follows the reader's light or dark setting.
"""

from dataclasses import dataclass, field
from html import escape

from ppo_lightning.explain.flow import ONLY_INSIDE, Flow, StageView, Touch, shape
from ppo_lightning.protocol.fields import BATCH, META, NON_TENSOR

CHAR = 7.3
"""Width of one character of the 12 px monospaced font, generously."""

LINE, PAD, CHIP, GAP = 16, 14, 22, 7
LAYER_CLASS = {BATCH: "tensor", NON_TENSOR: "column", META: "value"}
LEGEND = ((BATCH, "tensor per token or row"), (NON_TENSOR, "column of objects"), (META, "value per step"))

STYLE = """
svg.flow { --ink: #1f2328; --soft: #59636e; --page: #ffffff; --hook: #f3f5f7; --line: #d1d9e0; --box: #ffffff;
  --tensor: #d9eafd; --column: #dff3e1; --value: #fbeed3; font: 12px ui-monospace, "DejaVu Sans Mono", monospace; }
@media (prefers-color-scheme: dark) { svg.flow { --ink: #e6edf3; --soft: #9aa4ae; --page: #0d1117; --hook: #161b22;
  --line: #3d444d; --box: #0d1117; --tensor: #17365c; --column: #1b4332; --value: #54400f; } }
svg.flow text { fill: var(--ink); } svg.flow .soft { fill: var(--soft); }
svg.flow .title { font-size: 17px; font-weight: 600; } svg.flow .name { font-size: 14px; font-weight: 600; }
svg.flow .page { fill: var(--page); } svg.flow .hook { fill: var(--hook); stroke: var(--line); }
svg.flow .stage { fill: var(--box); stroke: var(--line); stroke-width: 1.5; }
svg.flow .tensor { fill: var(--tensor); } svg.flow .column { fill: var(--column); }
svg.flow .value { fill: var(--value); }
svg.flow .off { fill: none; stroke: var(--line); stroke-dasharray: 4 3; }
svg.flow .arrow { stroke: var(--soft); stroke-width: 1.5; fill: none; } svg.flow .head { fill: var(--soft); }
"""


@dataclass
class Canvas:
    """Shapes drawn so far, from the top down.

    Attributes:
        width: of the picture.
        y: where the next shape goes.
        shapes: SVG elements.
    """

    width: int
    y: float = 0.0
    shapes: list[str] = field(default_factory=list)

    def text(self, x: float, words: str, css: str = "") -> None:
        """Write one line at x with its baseline at y."""
        self.shapes.append(f'<text x="{x:g}" y="{self.y:g}" class="{css}">{escape(words)}</text>')

    def lines(self, x: float, words: str, css: str, right: float) -> None:
        """Write words from x on, broken before `right`, each line below the last."""
        for line in wrap(words, int((right - x) / CHAR)):
            self.text(x, line, css)
            self.y += LINE

    def box(self, x: float, y: float, width: float, height: float, css: str, radius: int = 6) -> str:
        """Return a rounded rectangle."""
        size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        return f'<rect {size} rx="{radius}" class="{css}"/>'

    def add(self, shape: str, at: int | None = None) -> None:
        """Draw a shape, on top or below everything from position `at` on."""
        self.shapes.insert(len(self.shapes) if at is None else at, shape)


def picture(flow: Flow, title: str, width: int = 960) -> str:
    """Return the step as an SVG document of a given width in pixels."""
    canvas = Canvas(width, y=30)
    canvas.lines(PAD, f"One step of {title}", "title", width * 0.72)
    canvas.y += 4
    _legend(canvas, flow)
    stages = list(flow.stages)
    while stages:
        hook = stages[0].hook
        group = [stage for stage in stages if stage.hook == hook]
        stages = stages[len(group) :]
        _hook(canvas, hook, group, last=not stages)
    height = canvas.y + PAD
    body = "\n".join([canvas.box(0, 0, width, height, "page", 0), *canvas.shapes])
    size = f'viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}"'
    label = f'role="img" aria-label="One step of {escape(title, quote=True)}"'
    return (
        f'<svg class="flow" xmlns="http://www.w3.org/2000/svg" {size} {label}><style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def wrap(words: str, columns: int) -> list[str]:
    """Break words into lines; a word longer than a line is broken after `.`, `=`, `_` or `/`, or else at the end."""
    lines, line = [], ""
    for word in words.split():
        while len(word) > columns:
            cut = max((word.rfind(mark, 0, columns) for mark in ".=_/"), default=-1) + 1 or columns
            lines += [line] * bool(line) + [word[:cut]]
            line, word = "", word[cut:]
        if len(line) + len(word) + 1 > columns and line:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return [*lines, line] if line else lines


def _legend(canvas: Canvas, flow: Flow) -> None:
    axes = flow.axes
    canvas.lines(
        PAD,
        f"B = {axes['B']} sequences ({axes['B'] // axes['n']} prompts x {axes['n']}), P = {axes['P']} prompt tokens, "
        f"R = {axes['R']} response tokens, S = P + R = {axes['S']}",
        "soft",
        canvas.width - PAD,
    )
    canvas.y += 2
    x: float = PAD
    for layer, words in LEGEND:
        wide = 22 + len(f"{layer}: {words}") * CHAR + 12
        if x > PAD and x + wide > canvas.width:
            x, canvas.y = PAD, canvas.y + LINE + 4
        canvas.add(canvas.box(x, canvas.y - 11, 16, 13, LAYER_CLASS[layer], 3))
        canvas.text(x + 22, f"{layer}: {words}", "soft")
        x += wide
    canvas.y += 20


def _hook(canvas: Canvas, hook: str, stages: list[StageView], last: bool) -> None:
    """Draw the frame of a hook with its stages and arrows."""
    top, place = canvas.y, len(canvas.shapes)
    canvas.y += 20
    canvas.text(PAD + 10, hook, "soft")
    canvas.y += 10
    for stage in stages:
        _stage(canvas, stage)
        if not (last and stage is stages[-1]):
            _arrow(canvas, stage)
    canvas.y += 6 if last else 0
    canvas.add(canvas.box(PAD, top, canvas.width - 2 * PAD, canvas.y - top, "hook", 10), place)
    canvas.y += 8


def _stage(canvas: Canvas, stage: StageView) -> None:
    left, right = PAD + 10, canvas.width - PAD - 10
    top, place = canvas.y, len(canvas.shapes)
    canvas.y += 21
    canvas.text(left + 12, f"{stage.number} {stage.name}" if stage.number else "prompts", f"name {_soft(stage.off)}")
    canvas.y += LINE + 3
    read = ", ".join(touch.field.name for touch in stage.reads if touch.off is None)
    words = f"does not run: {stage.off}" if stage.off else f"reads {read}" if read else "one row per prompt draw"
    canvas.lines(left + 12, words, "soft", right - 12)
    canvas.y -= 5
    css = "off" if stage.off else "stage"
    canvas.add(canvas.box(left, top, right - left, canvas.y - top, css), place)


def _arrow(canvas: Canvas, stage: StageView) -> None:
    """Draw the arrow to the next stage with what this one writes."""
    x, top = PAD + 34, canvas.y
    canvas.y += 9
    if not stage.off:
        written = [touch for touch in stage.writes if touch.off is None]
        _chips(canvas, written, x + 18)
        for place, touch in enumerate(touch for touch in stage.writes if touch.off is not None):
            canvas.y += GAP if written or place else 0
            _missing(canvas, touch, x + 18)
    canvas.y += 14
    canvas.add(f'<path class="arrow" d="M{x} {top:g} V{canvas.y - 6:g}"/>')
    canvas.add(f'<path class="head" d="M{x - 5} {canvas.y - 8:g} h10 l-5 8 z"/>')


def _missing(canvas: Canvas, touch: Touch, left: float) -> None:
    """Draw a field that is not written as an empty chip, with the reason beside or below it."""
    name, right = touch.field.name, canvas.width - PAD - 16
    wide = len(name) * CHAR + 14
    canvas.add(canvas.box(left, canvas.y, wide, CHIP, "off", 5))
    canvas.y += 15
    canvas.text(left + 7, name, "soft")
    beside = left + wide + 8
    if beside + len(touch.off or "") * CHAR > right:
        canvas.y, beside = canvas.y + LINE + 5, left + 7
    canvas.lines(beside, touch.off or "", "soft", right)
    canvas.y += CHIP - 15 - LINE


def _chips(canvas: Canvas, touches: list[Touch], left: float) -> None:
    """Draw fields as chips, row by row."""
    x, right = left, canvas.width - PAD - 14
    for touch in touches:
        name, inside = touch.field.name, ONLY_INSIDE.get(touch.field.name)
        kind = f"{shape(touch.field)}, {inside}" if inside else shape(touch.field)
        wide = (len(name) + len(kind) + 1) * CHAR + 14
        if wide > right - left:
            kind, wide = "", len(name) * CHAR + 14
        if x > left and x + wide > right:
            x, canvas.y = left, canvas.y + CHIP + GAP
        tip = f"<title>{escape(touch.field.doc)}</title>"
        canvas.add(f"<g>{tip}{canvas.box(x, canvas.y, wide, CHIP, LAYER_CLASS[touch.field.layer], 5)}")
        label = f'{escape(name)} <tspan class="soft">{escape(kind)}</tspan>' if kind else escape(name)
        canvas.add(f'<text x="{x + 7:g}" y="{canvas.y + 15:g}">{label}</text></g>')
        x += wide + GAP
    canvas.y += CHIP if touches else 0


def _soft(off: str | None) -> str:
    return "soft" if off else ""
