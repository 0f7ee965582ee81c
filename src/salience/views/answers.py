"""Views of explained answers: the coloured prompt, the answer, ranked segments, and heat maps of answer × source."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from html import escape
from typing import TYPE_CHECKING, Any

from salience.core.characters import visible
from salience.core.text import Span
from salience.views.answer_sheet import (
    AnswerWord,
    Grid,
    answer_words,
    chosen,
    explained_number,
    grid,
    prompt_sheet,
    ranked_segments,
    ranked_words,
    relative,
    score_text,
    segment_grid,
)
from salience.views.charts import drawn
from salience.views.colours import FAINT, LIGHT, SIDES, Side, hexadecimal, shade, side
from salience.views.html import STYLE as EXPLANATION
from salience.views.html import text_of
from salience.views.pages import document, figure
from salience.views.sheet import Legend, label, notes, pieces

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from salience.generation import AnswerExplanation
    from salience.views.terminal import Paint

CELL = 26
TOP = 5
"""Words listed with their scores."""
TABLE = 16
"""The most words of an answer whose scores are all printed in a terminal."""
MOST = 48
"""The most rows, and the most columns, of a heat map."""


def title(e: "AnswerExplanation") -> str:
    """The method and the explained number."""
    kind = e.target.kind.replace("_", " ")
    return f"{e.method}: {kind} of {'each word of the answer' if e.matrix else 'the answer'}"


def subtitle(e: "AnswerExplanation", *notes: str) -> list[str]:
    """The settings of the method, what the colours mean, and further notes, one per line."""
    settings = ", ".join(f"{name}={value}" for name, value in e.settings.items() if value is not None)
    against = "" if e.target.against is None else f" rather than {visible(e.target.against, keep='')}"
    colours = f"orange: for this answer{against}; blue: against it" if e.signed else "darker: more important"
    return [line for line in (settings, f"{colours}; each row has its own scale", *notes) if line]


# ------------------------------------------------------------------------------------------------------ the terminal


def terminal(
    e: "AnswerExplanation", level: str = "word", *, paint: "Paint", width: int = 80, token: str | None = None
) -> "RenderableType":
    """The prompt coloured by its scores for the answer, or for one token of it; nothing is wider than ``width``."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from salience.views.terminal import legend_line, sentence

    one = chosen(e, token)
    sheet = prompt_sheet(one, level)
    head = Text.assemble((visible(e.model, keep=""), "bold"), (f"   explained: {explained_number(one)}", "dim"))
    prompt = sentence(sheet, pieces(sheet, level), paint)
    ends = (("against ", "the answer"), ("for ", "the answer")) if e.signed else (("little", ""), ("much", ""))
    settings = " · ".join(f"{name} {value}" for name, value in e.settings.items() if value is not None)
    parts: list[RenderableType] = [head, Text()]
    parts += [Text.assemble((visible(e.method, keep=""), "bold"), (f"  {visible(settings, keep='')}", "dim"))]
    parts += [Padding(prompt, (0, 0, 0, 2), expand=False), Text(), Text("answer", "bold")]
    parts += [Padding(_answer(e, one, level, paint), (0, 0, 0, 2), expand=False), Text()]
    ranked = _segments(one, paint, width)
    parts += ranked
    if not (ranked and e.settings.get("unit") == "segment"):  # the words of a segment have equal shares of its score
        parts += _table(one, level, paint, width) or _words(one, paint, width)
    parts += [legend_line(Legend(e.signed, *ends), paint), *_remarks(one)]
    return Group(*parts, Text())


def _answer(e: "AnswerExplanation", one: "AnswerExplanation", level: str, paint: "Paint") -> "Text":
    """The answer: bold where the model was sure, faint where it was not, underlined where it is explained."""
    from rich.style import Style
    from rich.text import Text

    text, at = Text(overflow="fold"), 0
    explained = set() if one is e else set(one.answer_offsets)
    for word in answer_words(e, level):
        text.append(visible(e.answer[at : word.span[0]]))
        shown = visible(word.name, keep="") if word.name else visible(e.answer[slice(*word.span)])
        marked = bool(explained & {e.answer_offsets[n] for n in word.tokens})
        text.append(shown, Style(bold=word.sure or None, dim=word.unsure or None, underline=marked or None))
        if not paint.colour and word.probability is not None and word.unsure:
            text.append(f"({_percent(word.probability)})", "dim")
        at = max(at, word.span[1])
    text.append(visible(e.answer[at:]))
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "under 1 %"


def _remarks(e: "AnswerExplanation") -> "Iterator[RenderableType]":
    from salience.views.terminal import indented

    if any(word.probability is not None for word in answer_words(e)):
        yield indented("answer: bold where the model was sure (90 % or more), faint below 10 %")
    yield from map(indented, _below(e))


def _below(e: "AnswerExplanation") -> Iterator[str]:
    """What every view says below its colours: the scores of tokens that are not ranked, and the notes of the method."""
    if abs(e.template) > 0:
        yield f"template and special tokens: {score_text(e, e.template)}"
    if abs(e.outside) > 0:
        yield f"tokens of the prompt outside of these segments: {score_text(e, e.outside)}"
    yield from notes(prompt_sheet(e))


def _segments(e: "AnswerExplanation", paint: "Paint", width: int) -> "list[RenderableType]":
    """The segments, the strongest first, each with its score, a bar and its beginning."""
    from rich.text import Text

    from salience.views.terminal import cut, one_line

    segments = ranked_segments(e)
    if not segments:
        return []
    room = max(10, width - 48)
    rows = [(cut(label(s.name), 20), s.score, cut(one_line(s.text), room)) for s in segments]
    return [Text(f"segments by {e.rule or 'match'}", "bold"), _ranked(e, rows, paint), Text()]


def _words(e: "AnswerExplanation", paint: "Paint", width: int) -> "list[RenderableType]":
    from rich.text import Text

    from salience.views.terminal import cut

    rows = [(cut(name, width - 30), score, "") for name, score in ranked_words(e, TOP)]
    more = len(e.word_totals()) - TOP
    rest = [Text(f"  … {more} more; use --json for all", "dim")] if more > 0 else []
    return [Text("strongest words", "bold"), _ranked(e, rows, paint), *rest, Text()]


def _ranked(e: "AnswerExplanation", rows: Sequence[tuple[str, float, str]], paint: "Paint") -> "RenderableType":
    """Names with scores and bars, on one scale."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from salience.views.terminal import bar_of

    strongest = max((abs(score) for _, score, _ in rows), default=0.0) or 1.0
    table = Table.grid(padding=(0, 1))
    for _ in range(4):
        table.add_column(no_wrap=True)
    for name, score, more in rows:
        bar = Text(bar_of(abs(score) / strongest, 10).ljust(10))
        if paint.colour:
            bar.stylize(hexadecimal(SIDES[side(score, e.signed)]))
        table.add_row(Text(name), Text(score_text(e, score, ".4f"), justify="right"), bar, Text(more, "dim"))
    return Padding(table, (0, 0, 0, 2), expand=False)


def _table(e: "AnswerExplanation", level: str, paint: "Paint", width: int) -> "list[RenderableType]":
    """A table with the answer down and the source across, if it fits; each word of the answer has its own scale."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    source, answer, matrix = grid(e, level)
    names, heads = [label(word) for word in answer], [label(word) for word in source]
    scores = [[score_text(e, value, ".2f") for value in row] for row in matrix]
    columns = [max(map(cell_len, (head, *column))) for head, *column in zip(heads, *scores, strict=True)]
    if max(map(cell_len, names), default=0) + sum(columns) + len(columns) > width or len(answer) > TABLE:
        return []
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    made.add_column("", no_wrap=True)
    for head in heads:
        made.add_column(Text(head), justify="right", no_wrap=True)
    for name, row, shares in zip(names, scores, relative(matrix, signed=e.signed), strict=True):
        best = max(shares, default=0.0)
        cells = [
            Text(value, paint.style(share, e.signed) if paint.colour else "bold" if share == best else "")
            for value, share in zip(row, shares, strict=True)
        ]
        made.add_row(Text(name, style="bold"), *cells)
    return [made, Text()]


# ------------------------------------------------------------------------------------------------------ images


def heat_map(
    content: Grid,
    *,
    signed: bool = False,
    name: str = "",
    notes: Sequence[str] = (),
    shares: Sequence[Sequence[float]] | None = None,
) -> Any:
    """An altair chart of one matrix: source across, answer down. The ``notes`` stand below its name.

    ``shares`` are the scores between -1 and 1 that set the colours; by default each row has its own scale.
    """
    import altair as alt

    source, answer, matrix = content
    values = [
        {
            "x": f"{s:03d}",
            "y": f"{t:03d}",
            "source": source[s],
            "answer": answer[t],
            "score": matrix[t][s],
            "fill": hexadecimal(shade(share, LIGHT, signed)),
        }
        for t, row in enumerate(relative(matrix, signed=signed) if shares is None else shares)
        for s, share in enumerate(row)
    ]
    labels = {
        axis: "[" + ",".join(f"'{_quoted(label(w))}'" for w in words) + "][+datum.value]"
        for axis, words in (("x", source), ("y", answer))
    }
    heading = alt.Title(name, subtitle=[*notes], anchor="start", subtitleColor="#6b6b6b") if notes else name
    return (
        alt.Chart(alt.Data(values=values), title=heading, width=CELL * len(source), height=CELL * len(answer))
        .mark_rect(stroke="#e3e2dd")
        .encode(
            x=alt.X("x:N", title=None, axis=alt.Axis(orient="top", labelAngle=-60, labelExpr=labels["x"])),
            y=alt.Y("y:N", title=None, axis=alt.Axis(labelExpr=labels["y"])),
            color=alt.Color("fill:N", scale=None, legend=None),
            tooltip=["answer:N", "source:N", "score:Q"],
        )
    )


def _quoted(word: str) -> str:
    return word.replace("\\", "\\\\").replace("'", "\\'")


def picture(explanations: "Sequence[AnswerExplanation]", kind: str, *, level: str = "word") -> bytes:
    """The heat maps of some explanations, one below the other, as the bytes of a PNG or an SVG."""
    import altair as alt

    maps: list[Any] = []
    for e in explanations:
        content, left_out = capped(e, level)
        maps.append(heat_map(content, signed=e.signed, name=title(e), notes=subtitle(e, *left_out)))
    return drawn(alt.vconcat(*maps), kind)


def capped(e: "AnswerExplanation", level: str = "word", most: int = MOST) -> tuple[Grid, list[str]]:
    """Rows and columns that fit an image, and what was left out: of a long source the strongest, of a long answer the
    first. The columns are the segments, if such were asked for.
    """
    by_segment = e.chosen_segments() is not None
    source, answer, matrix = segment_grid(e) if by_segment else grid(e, level)
    notes: list[str] = []
    if len(source) > most:
        weights = [max(abs(row[s]) for row in matrix) for s in range(len(source))]
        kept = sorted(sorted(range(len(source)), key=lambda s: -weights[s])[:most])
        notes.append(f"the {most} strongest of {len(source)} {'segment' if by_segment else level}s of the source")
        source, matrix = [source[s] for s in kept], [[row[s] for s in kept] for row in matrix]
    if len(answer) > most:
        notes.append(f"the first {most} of {len(answer)} {'word' if by_segment else level}s of the answer")
        answer, matrix = answer[:most], matrix[:most]
    return (source, answer, matrix), notes


# ------------------------------------------------------------------------------------------------------ pages


def page(explanations: "Sequence[AnswerExplanation]", *, level: str = "word") -> str:
    """A self-contained HTML page without scripts. Pointing at a word of the answer colours what made it."""
    parts = [f"{_article(e, level, _heat_map_below(e, level))}" for e in explanations]
    return document("Which words made the answer", *parts, style=EXPLANATION + STYLE)


def fragment(explanations: "Sequence[AnswerExplanation]", *, level: str = "word") -> str:
    """The same as a fragment, for a notebook cell, without heat maps."""
    return f"<div><style>{EXPLANATION}{STYLE}</style>{articles(explanations, level)}</div>"


def articles(explanations: "Sequence[AnswerExplanation]", level: str = "word") -> str:
    """One article per explanation, without the style that they share: the parts of a page."""
    return "".join(_article(e, level) for e in explanations)


def _heat_map_below(e: "AnswerExplanation", level: str) -> str:
    content, left_out = capped(e, level)
    svg = drawn(heat_map(content, signed=e.signed, name=title(e), notes=subtitle(e)), "svg")
    summary = escape("; ".join(["Heat map", *left_out]))
    return f"<details><summary>{summary}</summary>{figure(svg)}</details>"


MARKED = 24
"""The most source words that are coloured for one word of the answer."""


@dataclass(frozen=True, slots=True)
class _Link:
    """A source word that mattered to a word of the answer."""

    answer: int
    source: int
    score: str
    share: float
    side: Side


def _links(e: "AnswerExplanation", level: str) -> list[_Link]:
    """The strongest sources of each word of the answer."""
    if not e.matrix:
        return []
    links: list[_Link] = []
    _, _, matrix = grid(e, level)
    for t, (row, shares) in enumerate(zip(matrix, relative(matrix, signed=False), strict=True)):
        strong = [s for s, share in enumerate(shares) if abs(share) >= FAINT]
        links += [
            _Link(t, s, score_text(e, row[s], ".2g"), abs(shares[s]), side(row[s], e.signed))
            for s in sorted(strong, key=lambda s: -abs(shares[s]))[:MARKED]
        ]
    return links


def _article(e: "AnswerExplanation", level: str, below: str = "") -> str:
    links = _links(e, level)
    scope = f"x{blake2b(repr((e.to_dict(), level)).encode(), digest_size=5).hexdigest()}"
    prompt = _prompt_words(e, level)
    names = [*(word.name or e.prompt[slice(*word.span)] for word in prompt), *_said(e, level)]
    answer = [_answer_word(word, n, names, len(prompt), links) for n, word in enumerate(answer_words(e, level))]
    return (
        f'<article class="salience answers {scope}"><style>{"".join(_rules(links, scope))}</style>{_header(e)}'
        f'<section><h2>answer</h2><p class="text answer" dir="auto">{_marks(e.answer, answer)}</p></section>'
        f'<section><h2>prompt</h2><p class="text prompt" dir="auto">{_marks(e.prompt, prompt)}</p></section>'
        f"{_segment_list(e)}{_legend(e)}{_help(e)}{below}</article>"
    )


def _prompt_words(e: "AnswerExplanation", level: str) -> "list[_Word]":
    """The words or tokens of the prompt, with the colours of their scores for the whole answer."""
    sheet = prompt_sheet(e, level)
    plain = [abs(score) for score, special in zip(sheet.scores, sheet.special, strict=True) if not special]
    strongest = max(plain, default=0.0) or 1.0
    return [
        _Word(
            (a, b),
            "" if a < b else token,
            f"w w{n}",
            _painted(max(-1.0, min(1.0, score / strongest)), e.signed),
            f"{score_text(e, score)} for the whole answer",
        )
        for n, (token, (a, b), score) in enumerate(zip(sheet.tokens, sheet.offsets, sheet.scores, strict=True))
    ]


def _said(e: "AnswerExplanation", level: str) -> list[str]:
    """The words or tokens of the answer, which are sources of later ones."""
    return [word.name or e.answer[slice(*word.span)] for word in answer_words(e, level)]


def _header(e: "AnswerExplanation") -> str:
    settings = ", ".join(f"{name} = {value}" for name, value in e.settings.items() if value is not None)
    lines = [("model", e.model), ("explained", explained_number(e)), ("method", f"{e.method} ({settings})")]
    rows = "".join(f'<p class="quiet">{name}</p><p><bdi>{text_of(value)}</bdi></p>' for name, value in lines)
    return f"<header>{rows}</header>"


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of the page: where it is in its text, its name if it has no characters, its classes and its style."""

    span: Span
    name: str
    classes: str
    style: str
    about: str = ""


def _painted(relative: float, signed: bool) -> str:
    if abs(relative) < FAINT:
        return "--t:0"
    which = side(relative, signed)
    return f"--t:{abs(relative):.2f};--u:var(--{which});--v:var(--{which}-line);--b:{_LINES[which]}"


_LINES = {"for": "solid", "against": "dashed", "much": "dotted"}


def _answer_word(word: AnswerWord, number: int, names: Sequence[str], size: int, links: Sequence[_Link]) -> _Word:
    """A word of the answer, which is a source of later ones too. What made it is in its description."""
    made = [f"{label(names[k.source])} {k.score}" for k in links if k.answer == number][:3]
    known = "" if word.probability is None else f"probability {_percent(word.probability)}"
    about = "; ".join(part for part in (known, f"made by {', '.join(made)}" if made else "") if part)
    kind = " sure" if word.sure else " unsure" if word.unsure else ""
    return _Word(word.span, word.name, f"a a{number} w w{size + number}{kind}", "--t:0", about)


def _marks(text: str, words: Sequence[_Word]) -> str:
    """A text with each word in a mark element that can be reached by keyboard."""
    out, at = list[str](), 0
    for word in words:
        start, end = max(at, word.span[0]), word.span[1]
        out.append(text_of(text[at:start]))
        shown = text_of(label(word.name)) if word.name else text_of(text[start:end])
        title = f' title="{escape(word.about)}"' if word.about else ""
        out.append(f'<mark tabindex="0" class="{word.classes}" style="{word.style}"{title}>{shown}</mark>')
        at = max(at, end)
    return "".join([*out, text_of(text[at:])])


def _rules(links: Sequence[_Link], scope: str) -> Iterator[str]:
    """Pointing at a word, or reaching it by keyboard, colours the words that it is linked with and shows the scores."""
    if not links:
        return
    yield f".{scope}:has(.w:is(:hover,:focus)) .w{{--s:0;--n:''}}"
    prompt_side: dict[int, list[_Link]] = {}
    answer_side: dict[int, list[_Link]] = {}
    for link in links:
        answer_side.setdefault(link.answer, []).append(link)
        prompt_side.setdefault(link.source, []).append(link)
    for s, own in prompt_side.items():
        inner = "".join(f".a{k.answer}{{{_coloured(k)}}}" for k in own)
        yield f".{scope}:has(.w{s}:not(.a):is(:hover,:focus)){{{inner}}}"
    for t, own in answer_side.items():
        inner = "".join(f".w{k.source}{{{_coloured(k)}}}" for k in own)
        yield f".{scope}:has(.a{t}:is(:hover,:focus)){{{inner}}}"


WRITTEN = 0.25
"""Scores of this share of the strongest one, or more, are written below their words; the table has all."""


def _coloured(link: _Link) -> str:
    which = link.side
    colours = f"--c:var(--{which});--l:var(--{which}-line);--k:{_LINES[which]}"
    written = f";--n:'{link.score}'" if link.share >= WRITTEN else ""  # those of many short words would overlap
    return f"--s:{link.share:.2f};{colours}{written}"


def _segment_list(e: "AnswerExplanation") -> str:
    """The segments, the strongest first, each with its score and a bar."""
    segments = ranked_segments(e)
    strongest = max((abs(one.score) for one in segments), default=0.0) or 1.0
    rows = "".join(
        f"<div><bdi>{text_of(label(one.name))}</bdi><b>{score_text(e, one.score)}</b>"
        f'<span><i class="{side(one.score, e.signed)}" style="--s:1;width:{100 * abs(one.score) / strongest:.1f}%"></i>'
        f'<small class="quiet" dir="auto">{text_of(_beginning(one.text))}</small></span></div>'
        for one in segments
    )
    head = f"segments by {e.rule or 'match'}"
    return f'<section><h2>{escape(head)}</h2><div class="bars">{rows}</div></section>' if segments else ""


BEGINNING = 90


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= BEGINNING else f"{line[: BEGINNING - 1]}…"


def _legend(e: "AnswerExplanation") -> str:
    ends = ("against the answer", "for the answer") if e.signed else ("little", "much; these scores have no sign")
    steps = [-1, -0.66, -0.33, 0, 0.33, 0.66, 1] if e.signed else [0, 0.33, 0.66, 1]
    boxes = "".join(f'<i class="{side(s, e.signed)}" style="--s:{abs(s)}"></i>' if s else "<i></i>" for s in steps)
    below = "".join(f'<p class="quiet">{text_of(line)}</p>' for line in _below(e))
    return f'<p class="legend quiet">{ends[0]} <span>{boxes}</span> {ends[1]}</p>{below}'


def _help(e: "AnswerExplanation") -> str:
    sure = "Words of the answer are bold where the model was sure (90 % or more), and italic below 10 %."
    point = (
        "The prompt is coloured for the whole answer. Point at a word of the answer, click it or reach it with the Tab "
        "key to see what made it; do the same with a word of the prompt to see what it made."
    )
    lines = [point if e.matrix else "The prompt is coloured for the whole answer.", sure if e.values else ""]
    return f'<p class="quiet">{" ".join(filter(None, lines))}</p>'


STYLE = """
.salience.answers mark { position: relative; --s: var(--t); --c: var(--u, transparent); --l: var(--v, transparent);
  --k: var(--b, solid); background: color-mix(in srgb, var(--c) calc(var(--s) * 100%), transparent);
  border-bottom: calc(var(--s) * 3px) var(--k) var(--l); cursor: default; }
.salience.answers mark::after { content: var(--n, ""); position: absolute; left: 0; top: calc(100% + 3px); z-index: 1;
  font: .65rem/1 ui-monospace, monospace; color: var(--quiet); white-space: nowrap; pointer-events: none;
  direction: ltr; unicode-bidi: isolate; }
.salience.answers mark:is(:hover, :focus) { outline: 2px solid var(--ink); outline-offset: 1px; border-radius: 3px; }
.salience.answers .text { line-height: 2.3; }
.salience.answers .answer { font-size: 1.15rem; }
.salience.answers .sure { font-weight: 600; }
.salience.answers .unsure { font-style: italic; color: var(--quiet); }
.salience.answers .prompt { max-height: 36rem; overflow-y: auto; padding-bottom: .9rem; }
.salience.answers .bars small { display: block; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  .salience.answers .bars { grid-template-columns: minmax(4rem, 7rem) max-content minmax(4rem, 1fr); } }
"""
