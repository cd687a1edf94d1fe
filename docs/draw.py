"""Draw docs/images/dataflow.svg from the tables of stages and fields: which stage writes what, in which hook."""

from html import escape
from itertools import groupby

from ppo_lightning.protocol.fields import BATCH, FIELDS, META, NON_TENSOR
from ppo_lightning.stages import STAGES

NOTES = {
    "data": ("a uid per prompt draw,", "n rows per prompt"),
    "rollout": ("RolloutCallback: engine samples,", "rules score what is finished"),
    "align": ("padding convention verified,", "tokens counted over all ranks"),
    "score": ("one float per response,", "at its last token"),
    "old_log_prob": ("skipped with one optimizer step", "per rollout, or in bypass mode"),
    "ref_log_prob": ("only with KL in the reward", "or in the loss"),
    "values": ("only with a critic",),
    "advantage": ("groups by uid; KL, correction,", "estimator; moments over all ranks"),
    "update": ("critic, then actor; loss divided by", "the global count of the mini-batch"),
    "settle": ("MetricsCallback: one collective,", "one line per step"),
}
"""Beside each stage: what it does with denominators, ranks and switches."""

WIDTH, TOP, LINE, GAP = 1080, 64, 16, 12
HOOK, BOX, NOTE = 16, 44, 190
LAYERS = {
    BATCH: (452, "batch: per token"),
    NON_TENSOR: (662, "non_tensor_batch: per row"),
    META: (872, "meta_info: per step"),
}
FILL = {BATCH: "#e3eefb", NON_TENSOR: "#e6f4e6", META: "#fbf0dc"}
STYLE = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px;fill:#1b1f24"


def dataflow() -> str:
    """Return the picture as SVG text."""
    rows = [("data", "on_before_batch_transfer"), *((stage.name, stage.hook) for stage in STAGES)]
    parts, y, spans = [], TOP, []
    for number, (name, hook) in enumerate(rows):
        height = LINE * max(3, *(len(_keys(name, layer)) for layer in LAYERS)) + 2 * GAP
        parts += _row(number, name, y, height)
        spans.append((hook, y, y + height))
        y += height + GAP
    for hook, group in groupby(spans, key=lambda span: span[0]):
        found = list(group)
        parts += _hook(hook, found[0][1], found[-1][2])
    columns = [
        f'<rect x="{x - 8}" y="44" width="{196}" height="{y - 44 - GAP + 8}" rx="6" fill="{FILL[layer]}"/>'
        f'<text x="{x}" y="36" style="{STYLE};font-weight:bold">{escape(title)}</text>'
        for layer, (x, title) in LAYERS.items()
    ]
    heads = (
        f'<text x="{BOX}" y="36" style="{STYLE};font-weight:bold">stage</text>'
        f'<text x="{NOTE}" y="36" style="{STYLE};font-weight:bold">what happens</text>'
    )
    frame = f'<rect width="{WIDTH}" height="{y + 8}" fill="#ffffff"/>'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 8}" role="img">'
    title = "<title>The nine stages of a step, their hooks, and the keys each writes into the batch</title>"
    return "\n".join([opening, title, frame, *columns, heads, *parts, "</svg>", ""])


def _keys(stage: str, layer: str) -> list[str]:
    return [field.name for field in FIELDS.values() if field.stage == stage and field.layer == layer]


def _row(number: int, name: str, y: int, height: int) -> list[str]:
    middle = y + height / 2
    label = f"{number} {name}" if number else name
    parts = [
        f'<line x1="{BOX - 4}" y1="{y - GAP / 2}" x2="{WIDTH - 20}" y2="{y - GAP / 2}" stroke="#d0d7de"/>',
        f'<rect x="{BOX}" y="{middle - 15}" width="130" height="30" rx="6" fill="#1f4e79"/>',
        f'<text x="{BOX + 65}" y="{middle + 4}" text-anchor="middle" style="{STYLE};fill:#ffffff">{label}</text>',
        *_lines(NOTES[name], NOTE, middle, "#57606a", "font-size:11px"),
    ]
    if number:
        parts.append(f'<path d="M{BOX + 65} {middle - 27} l-5 0 l5 8 l5 -8 z" fill="#1f4e79"/>')
    for layer, (x, _) in LAYERS.items():
        parts += _lines(_keys(name, layer), x, middle, "#1b1f24")
    return parts


def _lines(texts: tuple[str, ...] | list[str], x: int, middle: float, colour: str, extra: str = "") -> list[str]:
    first = middle - LINE * (len(texts) - 1) / 2 + 4
    return [
        f'<text x="{x}" y="{first + LINE * place:g}" style="{STYLE};fill:{colour};{extra}">{escape(text)}</text>'
        for place, text in enumerate(texts)
    ]


def _hook(hook: str, top: int, bottom: int) -> list[str]:
    middle = (top + bottom) / 2
    short = hook if bottom - top > 8 * len(hook) else hook.replace("on_", "").replace("_batch_", " ")
    return [
        f'<line x1="{HOOK + 14}" y1="{top}" x2="{HOOK + 14}" y2="{bottom}" stroke="#9a6700" stroke-width="2"/>',
        f'<text transform="translate({HOOK + 8} {middle:g}) rotate(-90)" text-anchor="middle" '
        f'style="{STYLE};fill:#9a6700;font-size:9px">{escape(short)}</text>',
    ]
