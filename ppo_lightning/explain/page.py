"""The picture of a step as a page of its own, with the table of fields below; wide and narrow screens. No torch."""

from html import escape

from ppo_lightning.explain.flow import FieldView, Flow, shape
from ppo_lightning.explain.picture import picture

WIDE, NARROW = 960, 372
STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --page: #ffffff; --line: #d1d9e0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa4ae; --page: #0d1117; --line: #3d444d; } }
body { margin: 0 auto; max-width: 960px; padding: 8px; background: var(--page); color: var(--ink);
  font: 14px/1.45 system-ui, "DejaVu Sans", sans-serif; }
svg { display: block; max-width: 100%; height: auto; margin: 0 auto; } .narrow { display: none; }
@media (max-width: 760px) { .wide { display: none; } .narrow { display: block; } }
h2 { font-size: 17px; margin: 24px 8px 4px; } table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 600; }
th, td { padding: 5px 8px; vertical-align: top; border-top: 1px solid var(--line); }
thead th { border-top: 0; } code { font: 12px ui-monospace, "DejaVu Sans Mono", monospace; }
td:nth-child(-n+3) { white-space: nowrap; }
tr.off, tr.off code { color: var(--soft); } tr.layer th { color: var(--soft); font-weight: 400; font-style: italic; }
@media (max-width: 760px) { table, tbody, tr, td, th { display: block; } thead { display: none; } tr { padding: 5px 8px;
  border-top: 1px solid var(--line); } th, td { border: 0; padding: 0; }
  td:nth-child(2), td:nth-child(3) { color: var(--soft); display: inline; }
  td:nth-child(3)::before { content: " \\00b7  "; } }
"""


def page(flow: Flow, title: str) -> str:
    """Return the page: one HTML file that loads nothing."""
    pictures = "".join(
        f'<div class="{css}">{picture(flow, title, width)}</div>' for css, width in (("wide", WIDE), ("narrow", NARROW))
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>One step of {escape(title)}</title><style>{STYLE}</style></head>\n<body>{pictures}"
        "<h2>Fields of the batch</h2><table><thead><tr><th>field</th><th>axes, type</th><th>lifetime</th>"
        f"<th>meaning, or why it is not there</th></tr></thead><tbody>\n{_rows(flow)}\n</tbody></table></body></html>\n"
    )


def _rows(flow: Flow) -> str:
    rows, layer = [], ""
    for view in flow.fields:
        if view.field.layer != layer:
            layer = view.field.layer
            rows.append(f'<tr class="layer"><th colspan="4">{layer}</th></tr>')
        rows.append(_row(view))
    return "\n".join(rows)


def _row(view: FieldView) -> str:
    meaning = f"no: {view.off}" if view.off else view.field.doc
    lifetime = "not there" if view.off else view.lifetime
    cells = f"<code>{view.field.name}</code>", f"<code>{shape(view.field)}</code>", escape(lifetime), escape(meaning)
    css = ' class="off"' if view.off else ""
    return f"<tr{css}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
