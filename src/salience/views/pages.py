"""The elements of HTML pages: self-contained documents, tables and figures. No scripts, no external resources."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from html import escape
from typing import cast

from salience.core.characters import visible
from salience.views.schemes import DARK, PAPER, SOFT, dark_rules

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\u202a-\u202e\u2066\u2067]")
"""Characters that HTML does not allow, and those that reverse the text around them."""


def document(title: str, *parts: str, style: str = "") -> str:
    """A complete page without scripts or external resources. The title must already be escaped."""
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        f"{''.join(parts)}\n</main>\n</body>\n</html>\n"
    )
    return FORBIDDEN.sub(lambda match: visible(match[0]), page)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, bold: Collection[tuple[int, int]] = ()) -> str:
    """An HTML table. The first cell of each row is its heading; ``bold`` holds (row, column) of other cells."""
    top = "".join(f"<th scope=col>{escape(cell)}</th>" if cell else "<td></td>" for cell in head)
    body = "".join(
        f"<tr><th scope=row>{escape(first)}</th>{''.join(_cell(c, (i, j) in bold) for j, c in enumerate(rest))}</tr>"
        for i, (first, *rest) in enumerate(rows)
    )
    kind = "report" if head else "report facts"
    made = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide" tabindex="0">{made}</div>'


def _cell(text: str, bold: bool) -> str:
    return f"<td>{f'<b>{escape(text)}</b>' if bold else escape(text)}</td>"


def figure(svg: bytes) -> str:
    """A picture in colours of its own, which stays on white paper."""
    return f'<figure class="picture wide" tabindex="0">{svg.decode()}</figure>'


Content = tuple[Sequence[str], Iterable[Sequence[str]]]
"""The header and the rows of a table."""


def chart(svg: bytes, about: str, numbers: Content | None) -> str:
    """A chart of :mod:`salience.views.plots` and the table behind it; None if the page has that table already."""
    drawn = f'<div class="wide" tabindex="0" role="group" aria-label="{escape(about)}">{_hidden(svg)}</div>'
    return f'<figure class="chart">{drawn}{behind(numbers)}</figure>'


def panels(charts: Mapping[str, bytes], about: str, numbers: Content | None) -> str:
    """Small charts beside each other, as many as fit, each below its name; and the table behind them."""
    each = "".join(f'<div><p class="name">{escape(name)}</p>{_hidden(svg)}</div>' for name, svg in charts.items())
    return (
        f'<figure class="chart"><div class="panels" role="group" aria-label="{escape(about)}">{each}</div>'
        f"{behind(numbers)}</figure>"
    )


def _hidden(svg: bytes) -> str:
    """A chart, hidden from readers who cannot see it: they have its table."""
    return f'<div aria-hidden="true">{svg.decode()}</div>'


def behind(numbers: Content | None) -> str:
    """The table behind a chart, collapsed."""
    return (
        "" if numbers is None else f"<details><summary>The numbers of this chart</summary>{table(*numbers)}</details>"
    )


def settings_table(values: Mapping[str, object]) -> str:
    """Settings by their names, as a table."""
    return table((), [(name.replace("_", " "), _plain(value)) for name, value in values.items()])


def _plain(value: object) -> str:
    """A setting in words: the fields of a value one after the other, and a dash for nothing.

    >>> _plain({"epochs": 8, "shape": (2, 3), "vectors": None})
    'epochs 8, shape 2 3, vectors –'
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value).items()
        return ", ".join(f"{str(name).replace('_', ' ')} {_plain(one)}" for name, one in items) or "–"
    if isinstance(value, (list, tuple)):
        return " ".join(map(_plain, cast(Sequence[object], value))) or "–"
    return "–" if value is None or value == "" else str(value)


def listed(sentences: Iterable[str]) -> str:
    """Sentences as a bulleted list; nothing if there are none."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def parts(*content: str) -> str:
    """The parts of a page for a notebook cell, with the style of their tables."""
    return f'<div class="salience-parts"><style>{PARTS}</style>{"".join(content)}</div>'


PARTS = f"""
.report {{ border-collapse: collapse; margin: 1rem 0; }}
.report th, .report td {{ padding: .25rem .9rem .25rem 0; text-align: start; border-bottom: 1px solid #8884;
  vertical-align: top; }}
.report tbody th {{ white-space: nowrap; }}
.report th {{ font-weight: 500; }}
.report td {{ font-size: .9rem; font-variant-numeric: tabular-nums; white-space: pre; }}
.report.facts td {{ white-space: pre-wrap; overflow-wrap: anywhere; min-width: 12rem; }}
.wide {{ overflow-x: auto; }}
.chart {{ margin: 1rem 0; padding: 1rem; background: {PAPER}; border-radius: 12px; }}
.chart .wide {{ padding-bottom: .3rem; }}
.chart svg, .picture svg {{ display: block; overflow: visible; }}
.chart svg > rect[fill="white"] {{ fill: none; }}
.chart details {{ margin-top: .6rem; font-size: .9rem; }}
.chart summary {{ cursor: pointer; color: {SOFT}; }}
.chart .legend {{ margin: 0 0 .6rem; font-size: .85rem; color: {SOFT}; }}
.panels {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: 1.2rem 1rem; }}
.panels .name {{ margin: 0 0 .2rem; font-size: .85rem; font-weight: 600; overflow-wrap: anywhere; }}
.panels svg {{ max-width: 100%; height: auto; }}
.picture {{ margin: 1rem 0; padding: 1rem; background: {PAPER}; border-radius: 12px; }}
@media (prefers-color-scheme: dark) {{
  .chart {{ background: {DARK[PAPER]}; }}
  .chart summary, .chart .legend {{ color: {DARK[SOFT]}; }}
{dark_rules(".chart")} }}
"""
"""The style of tables and charts, also for notebooks."""

STYLE = (
    """
:root { color-scheme: light dark; }
body { margin: 0; background: #f6f5f2; color: #1c1f24; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1, h2, h3 { font-weight: 600; line-height: 1.25; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 1.5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 1rem; }
h3 { font-size: 1.05rem; margin: 2rem 0 .75rem; }
li { margin: .4rem 0; overflow-wrap: anywhere; }
:focus-visible { outline: 3px solid #1f66a8; outline-offset: 2px; }
@media (max-width: 40rem) { main { padding: 1.25rem .8rem 3rem; }
  .report tbody th { white-space: normal; min-width: 8rem; }
  .chart, .picture { padding: .7rem; } ul { padding-inline-start: 1.2rem; } }
@media (prefers-color-scheme: dark) { body { background: #121417; color: #e9eaec; }
  :focus-visible { outline-color: #74b6f0; } }
"""
    + PARTS
)
