"""Explanations as HTML: one self-contained page, or a fragment for notebooks. No scripts, nothing from outside."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain

from salience.explanation import Explanation
from salience.views.colours import FAINT
from salience.views.pages import document
from salience.views.sheet import (
    Legend,
    Piece,
    Sheet,
    explained,
    is_number,
    label,
    legends,
    listed,
    notes,
    number,
    parted,
    pieces,
    plain_settings,
    sheets,
    visible,
)


def page(explanations: Sequence[Explanation], *, title: str | None = None, level: str = "word") -> str:
    """A whole page that stands alone. It asks the browser to load nothing and to run nothing."""
    return document(_text(title or "Why did the model say that?"), _body(explanations, level), style=_STYLE)


def fragment(explanations: Sequence[Explanation], *, level: str = "word") -> str:
    """The same without the page around it, for a notebook's cell."""
    return f"<div><style>{_STYLE}</style>{_body(explanations, level)}</div>"


def _body(explanations: Sequence[Explanation], level: str) -> str:
    return "\n".join(_sheet(sheet, level) for sheet in sheets(explanations))


def _sheet(sheet: Sheet, level: str) -> str:
    parts = chain(
        [_prediction(sheet.first)],
        (_row(sheet, e, level) for e in sheet.single),
        (_heat_map(row, level) for row in sheet.layered),
        [_legend(sheet), _numbers(sheet, level)],
    )
    return f'<article class="salience">{"".join(parts)}</article>'


def _prediction(e: Explanation) -> str:
    shown, more = listed(e)
    rows = "".join(_said(e, name, value) for name, value in shown)
    rest = f'<p class="quiet">and {more} more labels</p>' if more else ""
    return (
        f'<header><p class="quiet">model</p><p class="model"><bdi>{_text(e.model)}</bdi></p>'
        f'<p class="quiet">explained</p><p><bdi>{_text(explained(e))}</bdi> = {e.value:.4g}</p></header>'
        f'<div class="said">{rows}</div>{rest}'
    )


def _said(e: Explanation, name: str, value: float) -> str:
    kind = "asked" if name in (e.target.label, e.target.against) else ""
    if is_number(e):
        return f'<div class="{kind}"><bdi>{_text(label(name))}</bdi><span></span><b>{value:.4g}</b></div>'
    share = f"{100 * value:.1f}"
    return (
        f'<div class="{kind}"><bdi>{_text(label(name))}</bdi>'
        f'<span class="bar"><i style="width:{share}%"></i></span><b>{share} %</b></div>'
    )


def _row(sheet: Sheet, e: Explanation, level: str) -> str:
    told = "".join(f'<p class="quiet">{_text(line)}</p>' for line in notes(e))
    return (
        f'<section><h2>{_text(sheet.title(e))}</h2><div><p class="text" dir="auto">'
        f"{''.join(_sentence(e, pieces(e, level)))}</p>{told}</div></section>"
    )


def _sentence(e: Explanation, found: Sequence[Piece]) -> Iterator[str]:
    """The whole text in its order, nothing lost: pieces in marks, the rest between them."""
    at = 0
    for piece in found:
        yield _plain(e, at, piece.start)
        yield _mark(e, piece)
        at = max(at, piece.end)
    yield _plain(e, at, len(e.text))


def _plain(e: Explanation, start: int, end: int) -> str:
    """A stretch of the text, struck out where the model did not read it."""
    return "".join(
        f'<s title="the model did not read this">{_text(part)}</s>' if unread else _text(part)
        for part, unread in parted(e, start, end)
    )


def _mark(e: Explanation, piece: Piece) -> str:
    said = escape(_told(e, piece))
    if piece.name:
        kind = f"special {_side(piece)}"
        return f'<span class="{kind}" {_strength(piece)} title="{said}" data-name="{_text(piece.name)}"></span>'
    text = _plain(e, piece.start, piece.end)
    name = f' data-name="{label(piece.shown(e.text))}"' if piece.blank(e.text) else ""
    return f'<mark class="{_side(piece)}" {_strength(piece)}{name} title="{said}" aria-label="{said}">{text}</mark>'


def _side(piece: Piece) -> str:
    return "" if abs(piece.relative) < FAINT else "for" if piece.relative > 0 else "against"


def _strength(piece: Piece) -> str:
    return f'style="--s:{abs(piece.relative):.2f}"'


def _told(e: Explanation, piece: Piece) -> str:
    """A piece and its score; the marks around it keep its direction to itself."""
    return f"\u2068{_named(e, piece)}\u2069 {number(e, piece.score)}"


def _named(e: Explanation, piece: Piece) -> str:
    return label(piece.shown(e.text)) if piece.blank(e.text) else visible(piece.shown(e.text), keep="")


def _heat_map(row: Sequence[Explanation], level: str) -> str:
    """Layers down, words across."""
    found = [pieces(e, level) for e in row]
    heads = "".join(
        f'<th scope="col"><span><bdi>{_text(label(p.shown(row[0].text)))}</bdi></span></th>' for p in found[0]
    )
    lines = "".join(
        f'<tr><th scope="row">layer {_text(str(e.settings["layer"]))}</th>{"".join(_cell(e, p) for p in line)}</tr>'
        for e, line in zip(row, found, strict=True)
    )
    table = f'<table class="heat"><thead><tr><td></td>{heads}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<section><h2>{_text(row[0].method)}</h2><div class="wide">{table}</div></section>'


def _cell(e: Explanation, piece: Piece) -> str:
    said = escape(f"layer {e.settings['layer']}: {_told(e, piece)}")
    return f'<td class="{_side(piece)}" {_strength(piece)} title="{said}" aria-label="{said}"></td>'


def _legend(sheet: Sheet) -> str:
    lines = [f"{_scale(legend)}." for legend in legends(sheet)]
    lines[-1] += " Each row is on its own scale: its strongest word has the full colour." if _many(sheet) else ""
    return "".join(f'<p class="legend quiet">{line}</p>' for line in lines)


def _scale(legend: Legend) -> str:
    low, high = (f"{_text(before)}<bdi>{_text(name)}</bdi>" for before, name in (legend.low, legend.high))
    steps = '<i style="--s:0"></i>' + "".join(f'<i class="for" style="--s:{s}"></i>' for s in (0.33, 0.66, 1))
    if legend.signed:
        steps = "".join(f'<i class="against" style="--s:{s}"></i>' for s in (1, 0.66, 0.33)) + steps
    return f"{low} <span>{steps}</span> {high}"


def _many(sheet: Sheet) -> bool:
    return len(sheet.rows) > 1 or bool(sheet.layered)


def _numbers(sheet: Sheet, level: str) -> str:
    """Settings, gaps and every score, folded away."""
    every = [e for row in sheet.rows for e in row]
    settings = "".join(_settings(sheet, e) for e in every)
    return f"<details><summary>Settings and numbers</summary>{settings}{_table(sheet, every, level)}</details>"


def _settings(sheet: Sheet, e: Explanation) -> str:
    told = [f"{k} = {v}" for k, v in plain_settings(e).items()] or ["no settings"]
    return f"<p><b>{_text(sheet.title(e))}</b>: {_text('; '.join([*told, *notes(e)]))}</p>"


def _table(sheet: Sheet, every: Sequence[Explanation], level: str) -> str:
    heads = "".join(f'<th scope="col">{_text(_head(sheet, e))}</th>' for e in every)
    columns = [pieces(e, level) for e in every]
    lines = "".join(
        f'<tr><th scope="row"><bdi>{_text(label(row[0].shown(sheet.first.text)))}</bdi></th>'
        f"{''.join(f'<td>{number(e, p.score)}</td>' for e, p in zip(every, row, strict=True))}</tr>"
        for row in zip(*columns, strict=True)
    )
    return (
        f'<div class="wide"><table class="numbers"><thead><tr><th scope="col">{level}</th>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _head(sheet: Sheet, e: Explanation) -> str:
    layered = any(e in row for row in sheet.layered)
    return f"{e.method}, layer {e.settings['layer']}" if layered else sheet.title(e)


_OVERRIDES = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that reorder what follows: shown, not obeyed, so that the page shows what the model read."""


def _text(text: str) -> str:
    """Escaped, with what HTML forbids and what would reorder the page made visible; all else as it is."""
    return "".join(_character(c) for c in text)


def _character(c: str) -> str:
    if c == "\r":
        return "&#13;"
    forbidden = (c < " " and c not in "\t\n") or "\x7f" <= c < "\xa0" or "\ud800" <= c <= "\udfff"
    return visible(c) if forbidden or c in _OVERRIDES else escape(c)


_LIGHT = """
  --paper: #ffffff; --ink: #1c1f24; --quiet: #5d646e; --line: #e3e2dd; --bar: #8a929d;
  --for: #f6a14b; --for-line: #b45a00; --against: #7db3e2; --against-line: #1c5c9a;"""

_DARK = """
  --paper: #1b1e23; --ink: #eceef0; --quiet: #a2a9b3; --line: #32363d; --bar: #7b8490;
  --for: #a05504; --for-line: #ffa94d; --against: #23639f; --against-line: #7fbdf5;"""

_STYLE = (
    f"""
.salience {{{_LIGHT} }}
@media (prefers-color-scheme: dark) {{ .salience {{{_DARK} }} }}
[data-jp-theme-light="true"] .salience {{{_LIGHT} }}
[data-jp-theme-light="false"] .salience {{{_DARK} }}
"""
    + """
.salience { background: var(--paper); color: var(--ink); border: 1px solid var(--line); border-radius: 12px;
  padding: 1.25rem 1.5rem; margin: 0 0 1.25rem; font: 15px/1.5 system-ui, sans-serif; text-align: start; }
.salience p { margin: 0; }
.salience .quiet { color: var(--quiet); font-size: .85rem; }
.salience header { display: grid; grid-template-columns: 5.5rem 1fr; gap: .1rem .75rem; align-items: baseline; }
.salience .model { font-weight: 600; overflow-wrap: anywhere; }
.salience .said { margin: .9rem 0 .2rem; display: grid; grid-template-columns: fit-content(40%) 9rem max-content;
  gap: .15rem .75rem; align-items: center; }
.salience .said > div { display: contents; }
.salience .said bdi { overflow-wrap: anywhere; }
.salience .said b { font-weight: 400; font-variant-numeric: tabular-nums; text-align: end; }
.salience .said .asked bdi, .salience .said .asked b { font-weight: 600; }
.salience .bar { height: .5rem; border-radius: 99px; background: var(--line); overflow: hidden; }
.salience .bar i { display: block; height: 100%; background: var(--bar); border-radius: 99px; }
.salience .asked .bar i { background: var(--ink); }
.salience section { display: grid; grid-template-columns: 11rem minmax(0, 1fr); gap: .25rem 1.25rem;
  border-top: 1px solid var(--line); margin-top: 1rem; padding-top: .9rem; align-items: baseline; }
.salience h2 { font: 600 .85rem/1.5 ui-monospace, monospace; margin: 0; overflow-wrap: anywhere; color: inherit; }
.salience .text { font-size: 1.1rem; line-height: 1.95; white-space: pre-wrap; overflow-wrap: anywhere; }
.salience mark, .salience .special { color: inherit; background: none; border-radius: 3px; padding: .12em 0; }
.salience .special { font: italic .8em ui-monospace, monospace; color: var(--quiet); margin: 0 .3em;
  user-select: none; }
.salience .special::before, .salience mark.for[data-name]::before, .salience mark.against[data-name]::before {
  content: attr(data-name); }
.salience .special.for, .salience .special.against { color: inherit; }
.salience .for { background: color-mix(in srgb, var(--for) calc(var(--s) * 100%), transparent); }
.salience .against { background: color-mix(in srgb, var(--against) calc(var(--s) * 100%), transparent); }
.salience mark.for, .salience .special.for { border-bottom: calc(var(--s) * 3px) solid var(--for-line); }
.salience mark.against, .salience .special.against { border-bottom: calc(var(--s) * 3px) dashed var(--against-line); }
.salience s { opacity: .5; }
.salience .legend { border-top: 1px solid var(--line); margin-top: 1rem; padding-top: .8rem; }
.salience .legend span { display: inline-flex; gap: 2px; vertical-align: -.15em; margin: 0 .4rem; }
.salience .legend i { width: 1.4rem; height: .9rem; border-radius: 3px; box-sizing: border-box; }
.salience .legend i:not([class]) { border: 1px solid var(--line); }
.salience i.for, .salience td.for { border-bottom: calc(var(--s) * 3px) solid var(--for-line); }
.salience i.against, .salience td.against { border-bottom: calc(var(--s) * 3px) dashed var(--against-line); }
.salience .wide { overflow-x: auto; }
.salience table { border-collapse: separate; border-spacing: 2px; font-size: .85rem; margin: 0; border: 0; }
.salience th, .salience td { border: 0; background-color: transparent; text-align: start; font-weight: 400; }
.salience tr { background: none; }
.salience td.for { background: color-mix(in srgb, var(--for) calc(var(--s) * 100%), transparent); }
.salience td.against { background: color-mix(in srgb, var(--against) calc(var(--s) * 100%), transparent); }
.salience .heat td { min-width: 1.6rem; height: 1.4rem; padding: 0; border-radius: 3px; box-sizing: border-box; }
.salience .heat thead th { height: 1px; padding: 0 0 .3rem; vertical-align: bottom; text-align: center; }
.salience .heat thead span { writing-mode: vertical-rl; transform: rotate(180deg); white-space: nowrap;
  max-height: 9rem; overflow: hidden; text-overflow: ellipsis; display: inline-block; }
.salience .heat tbody th { color: var(--quiet); padding-inline-end: .5rem; white-space: nowrap; }
.salience details { margin-top: .7rem; font-size: .85rem; }
.salience summary { cursor: pointer; color: var(--quiet); }
.salience details p { margin: .4rem 0; overflow-wrap: anywhere; }
.salience .numbers { margin-top: .6rem; }
.salience .numbers th, .salience .numbers td { padding: .1rem .9rem .1rem 0; }
.salience .numbers td { font-variant-numeric: tabular-nums; text-align: end; }
.salience .numbers thead th { color: var(--quiet); }
@media (max-width: 40rem) { .salience section { grid-template-columns: 1fr; } .salience { padding: 1rem; } }
@media print { .salience { break-inside: avoid; print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
)
