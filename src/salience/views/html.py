"""Explanations as HTML: a self-contained page, or a fragment for notebooks. No scripts, no external resources."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain

from salience.core.characters import visible
from salience.explanations.explanation import Explanation
from salience.views.colours import FAINT, side
from salience.views.pages import FORBIDDEN, document
from salience.views.sheet import (
    Bar,
    Legend,
    Piece,
    Sheet,
    bars,
    explained,
    identified,
    is_number,
    label,
    legends,
    listed,
    notes,
    number,
    pieces,
    plain_settings,
    remarks,
    sheets,
    split_unread,
)


def page(
    explanations: Sequence[Explanation], *, title: str | None = None, level: str = "word", view: str = "text"
) -> str:
    """A self-contained HTML page without scripts or external resources. ``view`` is text, bar or waterfall."""
    return document(text_of(title or "Explanation of the prediction"), articles(explanations, level, view), style=STYLE)


def fragment(explanations: Sequence[Explanation], *, level: str = "word", view: str = "text") -> str:
    """The same as a fragment, for a notebook cell."""
    return f"<div><style>{STYLE}</style>{articles(explanations, level, view)}</div>"


def articles(explanations: Sequence[Explanation], level: str = "word", view: str = "text") -> str:
    """One article per sheet, without a style of its own: the parts of a page."""
    return "\n".join(_sheet(sheet, level, view) for sheet in sheets(explanations))


def _sheet(sheet: Sheet, level: str, view: str) -> str:
    rows = chain((_row(sheet, e, level) for e in sheet.single), (_heat_map(row, level) for row in sheet.layered))
    parts = chain(
        [prediction(sheet.first)],
        rows if view == "text" else (_diagram(sheet, e, level, view) for e in sheet.every),
        [_legend(sheet) if view == "text" else "", _numbers(sheet, level)],
    )
    return f'<article class="salience">{"".join(parts)}</article>'


def prediction(e: Explanation) -> str:
    """The model, the explained number and the probabilities."""
    shown, more = listed(e)
    rows = "".join(_label_row(e, name, value) for name, value in shown)
    rest = f'<p class="quiet">and {more} more labels</p>' if more else ""
    return (
        f'<header>{_identity(e)}<p class="quiet">model</p><p class="model"><bdi>{text_of(e.model)}</bdi></p>'
        f'<p class="quiet">explained</p><p><bdi>{text_of(explained(e))}</bdi> = {e.value:.4g}</p></header>'
        f'<div class="labels">{rows}</div>{rest}'
    )


def _identity(e: Explanation) -> str:
    """The id and the true label of a text of a data set."""
    name, truth = identified(e)
    head, _, rest = truth.partition(": ")
    known = [pair for pair in (("id", name), (head, rest)) if pair[1]]
    return "".join(f'<p class="quiet">{what}</p><p><b><bdi>{text_of(value)}</bdi></b></p>' for what, value in known)


def _label_row(e: Explanation, name: str, value: float) -> str:
    kind = "requested" if name in (e.target.label, e.target.against) else ""
    if is_number(e):
        return f'<div class="{kind}"><bdi>{text_of(label(name))}</bdi><span></span><b>{value:.4g}</b></div>'
    share = f"{100 * value:.1f}"
    return (
        f'<div class="{kind}"><bdi>{text_of(label(name))}</bdi>'
        f'<span class="bar"><i style="width:{share}%"></i></span><b>{share} %</b></div>'
    )


def _row(sheet: Sheet, e: Explanation, level: str) -> str:
    remarks = "".join(f'<p class="quiet">{text_of(line)}</p>' for line in notes(e))
    return (
        f'<section><h2>{text_of(sheet.title(e))}</h2><div><p class="text" dir="auto">'
        f"{''.join(sentence(e, pieces(e, level)))}</p>{remarks}</div></section>"
    )


def _diagram(sheet: Sheet, e: Explanation, level: str, view: str) -> str:
    """One line for each bar: its name, its score, and the bar itself."""
    lines = "".join(_bar(bar) for bar in bars(e, level, view))
    notes = "".join(f'<p class="quiet">{text_of(line)}</p>' for line in remarks(e, view))
    return f'<section><h2>{text_of(sheet.heading(e))}</h2><div><div class="bars">{lines}</div>{notes}</div></section>'


def _bar(bar: Bar) -> str:
    low, width, high = (f"{100 * share:.2f}%" for share in (bar.low, bar.high - bar.low, bar.high))
    thin = bar.side == "against" and bar.high - bar.low < 0.02  # it ends at 0, however thin it is
    start = f"calc({high} - max({width}, 2px))" if thin else low
    place = f"margin-inline-start:{start};width:{width}"
    kind = f"{bar.side} full" if bar.side else "total"
    return (
        f"<div><bdi>{text_of(bar.name)}</bdi><b>{text_of(bar.score)}</b>"
        f'<span><i class="{kind}" style="--s:1;{place}"></i></span></div>'
    )


def sentence(e: Explanation, parts: Sequence[Piece]) -> Iterator[str]:
    """The whole text in order, with each piece in a mark element."""
    at = 0
    for piece in parts:
        yield _plain(e, at, piece.start)
        yield _mark(e, piece)
        at = max(at, piece.end)
    yield _plain(e, at, len(e.text))


def _plain(e: Explanation, start: int, end: int) -> str:
    """A span of the text, struck out where the model did not read it."""
    return "".join(
        f'<s title="the model did not read this">{text_of(part)}</s>' if unread else text_of(part)
        for part, unread in split_unread(e, start, end)
    )


def _mark(e: Explanation, piece: Piece) -> str:
    title = escape(_title(e, piece))
    if piece.name:
        kind = f"special {_side(piece)}"
        return f'<span class="{kind}" {_strength(piece)} title="{title}" data-name="{text_of(piece.name)}"></span>'
    text = _plain(e, piece.start, piece.end)
    name = f' data-name="{label(piece.shown(e.text))}"' if piece.blank(e.text) else ""
    place = f'data-span="{piece.start},{piece.end}"'
    look = f'class="{_side(piece)}" {_strength(piece)}{name}'
    return f'<mark {look} {place} title="{title}" aria-label="{title}">{text}</mark>'


def _side(piece: Piece) -> str:
    return "" if abs(piece.relative) < FAINT else side(piece.relative, piece.signed)


def _strength(piece: Piece) -> str:
    return f'style="--s:{abs(piece.relative):.2f}"'


def _title(e: Explanation, piece: Piece) -> str:
    """A piece and its score; isolate characters keep its text direction from affecting the score."""
    return f"\u2068{_named(e, piece)}\u2069 {number(e, piece.score)}"


def _named(e: Explanation, piece: Piece) -> str:
    return label(piece.shown(e.text)) if piece.blank(e.text) else visible(piece.shown(e.text), keep="")


def _heat_map(row: Sequence[Explanation], level: str) -> str:
    """A heat map of layers by words."""
    columns = [pieces(e, level) for e in row]
    heads = "".join(
        f'<th scope="col"><span><bdi>{text_of(label(p.shown(row[0].text)))}</bdi></span></th>' for p in columns[0]
    )
    lines = "".join(
        f'<tr><th scope="row">layer {text_of(str(e.settings["layer"]))}</th>{"".join(_cell(e, p) for p in line)}</tr>'
        for e, line in zip(row, columns, strict=True)
    )
    table = f'<table class="heat"><thead><tr><td></td>{heads}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<section><h2>{text_of(row[0].method)}</h2><div class="wide" tabindex="0">{table}</div></section>'


def _cell(e: Explanation, piece: Piece) -> str:
    title = escape(f"layer {e.settings['layer']}: {_title(e, piece)}")
    return f'<td class="{_side(piece)}" {_strength(piece)} title="{title}" aria-label="{title}"></td>'


def _legend(sheet: Sheet) -> str:
    lines = [f"{_scale(legend)}." for legend in legends(sheet)]
    lines[-1] += " Each row has its own scale: its strongest word has the full colour." if _many(sheet) else ""
    return "".join(f'<p class="legend quiet">{line}</p>' for line in lines)


def _scale(legend: Legend) -> str:
    low, high = (f"{text_of(before)}<bdi>{text_of(name)}</bdi>" for before, name in (legend.low, legend.high))
    end = side(1, legend.signed)
    steps = '<i style="--s:0"></i>' + "".join(f'<i class="{end}" style="--s:{s}"></i>' for s in (0.33, 0.66, 1))
    if legend.signed:
        steps = "".join(f'<i class="against" style="--s:{s}"></i>' for s in (1, 0.66, 0.33)) + steps
    return f"{low} <span>{steps}</span> {high}"


def _many(sheet: Sheet) -> bool:
    return len(sheet.rows) > 1 or bool(sheet.layered)


def _numbers(sheet: Sheet, level: str) -> str:
    """Settings, gaps and all scores, collapsed."""
    settings = "".join(_settings(sheet, e) for e in sheet.every)
    return f"<details><summary>Settings and numbers</summary>{settings}{_table(sheet, sheet.every, level)}</details>"


def _settings(sheet: Sheet, e: Explanation) -> str:
    settings = [f"{k} = {v}" for k, v in plain_settings(e).items()] or ["no settings"]
    return f"<p><b>{text_of(sheet.title(e))}</b>: {text_of('; '.join([*settings, *notes(e)]))}</p>"


def _table(sheet: Sheet, every: Sequence[Explanation], level: str) -> str:
    heads = "".join(f'<th scope="col">{text_of(sheet.heading(e))}</th>' for e in every)
    columns = [pieces(e, level) for e in every]
    lines = "".join(
        f'<tr><th scope="row"><bdi>{text_of(label(row[0].shown(sheet.first.text)))}</bdi></th>'
        f"{''.join(f'<td>{number(e, p.score)}</td>' for e, p in zip(every, row, strict=True))}</tr>"
        for row in zip(*columns, strict=True)
    )
    return (
        '<div class="wide" tabindex="0"><table class="numbers"><thead><tr>'
        f'<th scope="col">{level}</th>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


_OVERRIDES = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that change the text direction. They are made visible, so that the page shows what the model read."""


def text_of(text: str) -> str:
    """Escape a text for HTML; forbidden characters and direction overrides are made visible."""
    return "".join(_character(c) for c in text)


def _character(c: str) -> str:
    if c == "\r":
        return "&#13;"
    return visible(c) if FORBIDDEN.match(c) or c in _OVERRIDES else escape(c)


_LIGHT = """
  --paper: #ffffff; --ink: #1c1f24; --quiet: #5d646e; --line: #e3e2dd; --bar: #8a929d;
  --for: #f6a14b; --for-line: #b45a00; --against: #7db3e2; --against-line: #1c5c9a;
  --much: #a9b0ba; --much-line: #5d646e;"""

_DARK = """
  --paper: #1b1e23; --ink: #eceef0; --quiet: #a2a9b3; --line: #32363d; --bar: #7b8490;
  --for: #a05504; --for-line: #ffa94d; --against: #23639f; --against-line: #7fbdf5;
  --much: #5d646e; --much-line: #a9b0ba;"""

STYLE = (
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
.salience .labels { margin: .9rem 0 .2rem; display: grid; grid-template-columns: fit-content(40%) 9rem max-content;
  gap: .15rem .75rem; align-items: center; }
.salience .labels > div { display: contents; }
.salience .labels bdi { overflow-wrap: anywhere; }
.salience .labels b { font-weight: 400; font-variant-numeric: tabular-nums; text-align: end; }
.salience .labels .requested bdi, .salience .labels .requested b { font-weight: 600; }
.salience .bar { height: .5rem; border-radius: 99px; background: var(--line); overflow: hidden; }
.salience .bar i { display: block; height: 100%; background: var(--bar); border-radius: 99px; }
.salience .requested .bar i { background: var(--ink); }
.salience section { display: grid; grid-template-columns: 11rem minmax(0, 1fr); gap: .25rem 1.25rem;
  border-top: 1px solid var(--line); margin-top: 1rem; padding-top: .9rem; align-items: baseline; }
.salience h2 { font-size: 1rem; line-height: 1.5; margin: 0; overflow-wrap: anywhere; color: inherit; }
.salience section h2 { font: 600 .85rem/1.5 ui-monospace, monospace; }
.salience .text { font-size: 1.1rem; line-height: 1.95; white-space: pre-wrap; overflow-wrap: anywhere; }
.salience mark, .salience .special { color: inherit; background: none; border-radius: 3px; padding: .12em 0; }
.salience .special { font: italic .8em ui-monospace, monospace; color: var(--quiet); margin: 0 .3em;
  user-select: none; }
.salience .special::before, .salience mark.for[data-name]::before, .salience mark.against[data-name]::before,
.salience mark.much[data-name]::before { content: attr(data-name); }
.salience .special.for, .salience .special.against, .salience .special.much { color: inherit; }
.salience .for { background: color-mix(in srgb, var(--for) calc(var(--s) * 100%), transparent); }
.salience .against { background: color-mix(in srgb, var(--against) calc(var(--s) * 100%), transparent); }
.salience .much { background: color-mix(in srgb, var(--much) calc(var(--s) * 100%), transparent); }
.salience mark.much, .salience .special.much, .salience i.much, .salience td.much {
  border-bottom: calc(var(--s) * 3px) dotted var(--much-line); }
.salience mark.for, .salience .special.for { border-bottom: calc(var(--s) * 3px) solid var(--for-line); }
.salience mark.against, .salience .special.against { border-bottom: calc(var(--s) * 3px) dashed var(--against-line); }
.salience s { opacity: .5; }
.salience .legend { border-top: 1px solid var(--line); margin-top: 1rem; padding-top: .8rem; }
.salience .legend span { display: inline-flex; gap: 2px; vertical-align: -.15em; margin: 0 .4rem; }
.salience .legend i { width: 1.4rem; height: .9rem; border-radius: 3px; box-sizing: border-box; }
.salience .legend i:not([class]) { border: 1px solid var(--line); }
.salience i.for, .salience td.for { border-bottom: calc(var(--s) * 3px) solid var(--for-line); }
.salience i.against, .salience td.against { border-bottom: calc(var(--s) * 3px) dashed var(--against-line); }
.salience .bars { display: grid; grid-template-columns: fit-content(14rem) max-content minmax(6rem, 1fr);
  gap: .15rem .75rem; align-items: center; font-size: .9rem; margin-bottom: .4rem; }
.salience .bars > div { display: contents; }
.salience .bars bdi { overflow-wrap: anywhere; }
.salience .bars b { font-weight: 400; font-variant-numeric: tabular-nums; text-align: end; }
.salience .bars i { display: block; height: .9rem; min-width: 2px; border-radius: 2px; box-sizing: border-box; }
.salience .bars .total { background: var(--bar); }
.salience .wide { overflow-x: auto; }
.salience table { border-collapse: separate; border-spacing: 2px; font-size: .85rem; margin: 0; border: 0; }
.salience th, .salience td { border: 0; background-color: transparent; text-align: start; font-weight: 400; }
.salience tr { background: none; }
.salience td.for { background: color-mix(in srgb, var(--for) calc(var(--s) * 100%), transparent); }
.salience td.against { background: color-mix(in srgb, var(--against) calc(var(--s) * 100%), transparent); }
.salience td.much { background: color-mix(in srgb, var(--much) calc(var(--s) * 100%), transparent); }
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
@media (max-width: 40rem) { .salience section { grid-template-columns: minmax(0, 1fr); } .salience { padding: 1rem; } }
@media print { .salience { break-inside: avoid; print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
)
