"""Explanations in a terminal, with colours or, without colour support, with + and - marks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from salience.core.characters import visible
from salience.explanations.explanation import Explanation
from salience.views.colours import DARK, FAINT, LIGHT, SIDES, Colour, hexadecimal, ink, shade, side
from salience.views.sheet import (
    Bar,
    Legend,
    Piece,
    Sheet,
    bars,
    chosen,
    explained,
    identified,
    is_number,
    label,
    legends,
    listed,
    notes,
    number,
    pieces,
    remarks,
    sheets,
    signed,
    split_unread,
)

if TYPE_CHECKING:  # importing a method imports torch
    from salience.methods.decoding import Decoded

TOP = 5
BAR = 20
WIDEST = 14
"""Maximum width of a heat map column; longer words are truncated."""

LONGEST = 24
"""Maximum width of the names of bars."""
WIDEST_BAR = 50

_PLAIN, _UNREAD = Style.null(), Style(dim=True, strike=True)


def render(
    explanations: Sequence[Explanation],
    *,
    level: str = "word",
    view: str = "text",
    colour: bool = True,
    ground: Colour = DARK,
    width: int = 80,
) -> RenderableType:
    """Render explanations for a terminal, one sheet per text. ``view`` is text, bar or waterfall."""
    shown = [_sheet(sheet, level, view, Paint(colour, ground), width) for sheet in sheets(explanations)]
    return Group(*(part for one in shown for part in (one, Text())))


def coloured(console: Console) -> bool:
    """Whether the console has enough colours to show scores."""
    return not console.no_color and console.color_system in ("256", "truecolor", "windows")


def ground(environment: Mapping[str, str]) -> Colour:
    """The background of the terminal; dark if it is unknown."""
    return LIGHT if environment.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15") else DARK


class Paint:
    """How a score is shown: by colour on the background of the terminal, or by marks."""

    def __init__(self, colour: bool, ground: Colour) -> None:
        self.colour, self.ground = colour, ground

    def style(self, relative: float, signed: bool = True) -> Style:
        if not self.colour or abs(relative) < FAINT:
            return Style.null()
        back = shade(relative, self.ground, signed)
        return Style(color=hexadecimal(ink(back)), bgcolor=hexadecimal(back))

    def marks(self, relative: float, signed: bool = True) -> str:
        return "" if self.colour else marks(relative, signed)

    def shows(self, relative: float) -> bool:
        return bool(self.marks(relative)) or bool(self.style(relative))


def marks(relative: float, signed: bool = True) -> str:
    """A score between -1 and 1 as signs; scores that are not signed have stars.

    >>> marks(0.9), marks(0.3), marks(0.0), marks(-0.3), marks(-1), marks(0.9, signed=False)
    ('++', '+', '', '-', '--', '**')
    """
    sign = "-" if relative < 0 else "+" if signed else "*"
    return sign * ((abs(relative) >= 0.2) + (abs(relative) >= 0.6))


def _sheet(sheet: Sheet, level: str, view: str, paint: Paint, width: int) -> RenderableType:
    if view != "text":
        diagrams = [_diagram(sheet, e, bars(e, level, view), view, paint, width) for e in sheet.every]
        return Group(prediction(sheet.first), Text(), *diagrams)
    rows = [_row(sheet, e, level, paint) for e in sheet.single]
    maps = [_heat_map(row, level, paint, width) for row in sheet.layered]
    return Group(prediction(sheet.first), Text(), *rows, *maps, *_footer(sheet, paint))


def prediction(e: Explanation) -> RenderableType:
    """The model, the explained number and the probabilities."""
    shown, more = listed(e)
    table = Table.grid(padding=(0, 1))
    for name, value in shown:
        style = "bold" if name in (e.target.label, e.target.against) else ""
        table.add_row(Text("  " + label(name), style), *_value(e, value))
    head = Text.assemble((visible(e.model, keep=""), "bold"), (f"   explained: {explained(e)} = {e.value:.4g}", "dim"))
    rest = [Text(f"  and {more} more", "dim")] if more else []
    return Group(*_identity(e), head, table, *rest)


def _identity(e: Explanation) -> Iterator[Text]:
    """The id and the true label of a text of a data set."""
    name, truth = identified(e)
    if name or truth:
        yield Text.assemble((name, "bold reverse"), "   " if name and truth else "", truth)


def _value(e: Explanation, value: float) -> tuple[Text, Text]:
    if is_number(e):
        return Text(), Text(f"{value:.4g}", justify="right")
    return Text(bar_of(value, BAR).ljust(BAR)), Text(f"{100 * value:.1f} %", justify="right")


def bar_of(share: float, cells: int) -> str:
    """A bar in eighths of a cell; a positive share is never empty."""
    eighths = max(round(share * cells * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def _diagram(sheet: Sheet, e: Explanation, drawn: Sequence[Bar], view: str, paint: Paint, width: int) -> RenderableType:
    """One line for each bar: its name, its score, and the bar itself."""
    names = [Text(cut(bar.name, LONGEST)) for bar in drawn]
    used = max((name.cell_len for name in names), default=0) + max((len(bar.score) for bar in drawn), default=0)
    cells = max(10, min(WIDEST_BAR, width - used - 6))
    table = Table.grid(padding=(0, 1))
    for name, bar in zip(names, drawn, strict=True):
        table.add_row(name, Text(bar.score, justify="right"), _span(bar, cells, paint))
    lines = Text("\n".join(line for line in (chosen(sheet, e), *remarks(e, view)) if line), "dim")
    indented = [Padding(part, (0, 0, 0, 2), expand=False) for part in (table, lines)]
    return Group(Text(sheet.heading(e), "bold"), *indented, Text())


def _span(bar: Bar, cells: int, paint: Paint) -> Text:
    """The bar in whole cells, at least one, which ends where a score against the label ends: at 0."""
    start, end = round(bar.low * cells), round(bar.high * cells)
    if bar.high > bar.low and start == end:
        start, end = (start - 1, end) if end == cells or (bar.side == "against" and start > 0) else (start, end + 1)
    colour = hexadecimal(SIDES[bar.side]) if paint.colour and bar.side else ""
    return Text.assemble(" " * min(start, cells - 1), ("█" * (end - start) if end > start else "▏", colour))


def _row(sheet: Sheet, e: Explanation, level: str, paint: Paint) -> RenderableType:
    parts_of_text = pieces(e, level)
    parts: list[RenderableType] = [
        Text(sheet.title(e), "bold"),
        *(Text(f"  {line}", "dim") for line in [chosen(sheet, e)] if line),
        Padding(sentence(e, parts_of_text, paint), (0, 0, 0, 2), expand=False),
    ]
    if len(sheet.rows) == 1 or not paint.colour:
        parts.append(Padding(strongest_pieces(e, parts_of_text, paint), (1, 0, 0, 2), expand=False))
    parts += map(indented, notes(e))
    return Group(*parts, Text())


def sentence(e: Explanation, parts: Sequence[Piece], paint: Paint) -> Text:
    """The whole text with each piece in its style; text that the model did not read is dim."""
    text = Text(overflow="fold")
    at, inner = 0, set[int]() if paint.colour else _inner(e)
    for piece in parts:
        _plain(text, e, at, piece.start)
        text.append("·" if piece.start in inner and not piece.name else "")
        if piece.name:
            text.append(" " if text and not text.plain[-1].isspace() else "")
            text.append(
                visible(piece.name, keep=""), paint.style(piece.relative, piece.signed) + Style(dim=True, italic=True)
            )
        elif piece.blank(e.text) and paint.shows(piece.relative):
            text.append(label(piece.shown(e.text)), paint.style(piece.relative, piece.signed))
        else:
            _plain(text, e, piece.start, piece.end, paint.style(piece.relative, piece.signed))
        if signs := paint.marks(piece.relative, signed(e)):
            text.append(f"({signs})", "bold")
        if piece.name:
            text.append(" ")
        elif piece.blank(e.text) and paint.shows(piece.relative):
            text.append("\n" * piece.shown(e.text).count("\n"))
        at = max(at, piece.end)
    _plain(text, e, at, len(e.text))
    return text


def _inner(e: Explanation) -> set[int]:
    """Positions inside words. Without colour, a token that starts there is separated by a dot."""
    return {at for word in e.words() for at in range(word.start + 1, word.end)}


def _plain(text: Text, e: Explanation, start: int, end: int, style: Style = _PLAIN) -> None:
    """Append a span of the text, struck out where the model did not read it."""
    for part, unread in split_unread(e, start, end):
        text.append(visible(part), style + _UNREAD if unread else style)


def strongest_pieces(e: Explanation, parts: Sequence[Piece], paint: Paint) -> RenderableType:
    """The strongest words with their scores and bars."""
    table = Table.grid(padding=(0, 1))
    for piece in sorted(parts, key=lambda p: -abs(p.score))[:TOP]:
        bar = Text(bar_of(abs(piece.relative), 10).ljust(10))
        if paint.colour:
            bar.stylize(hexadecimal(SIDES[side(piece.score, piece.signed)]))
        table.add_row(Text(label(one_line(piece.shown(e.text)))), _score(e, piece), bar)
    more = len(parts) - TOP
    return Group(table, Text(f"… {more} more; use --json for all", "dim")) if more > 0 else table


def _score(e: Explanation, piece: Piece) -> Text:
    return Text(number(e, piece.score, ".4f"), justify="right")


def one_line(text: str) -> str:
    short = " ".join(text.split()) or text
    return set_cell_size(short, 30).rstrip() + "…" if cell_len(short) > 31 else short


def _footer(sheet: Sheet, paint: Paint) -> Iterator[Text]:
    for legend in legends(sheet):
        yield legend_line(legend, paint)
    if len(sheet.rows) > 1 or sheet.layered:
        yield Text("  each row has its own scale: its strongest word has the full colour", "dim")


def indented(line: str) -> RenderableType:
    """A remark; where it takes several lines, all of them are indented."""
    return Padding(Text(line, "dim"), (0, 0, 0, 2), expand=False)


def legend_line(legend: Legend, paint: Paint) -> Text:
    steps = (0.0, 0.3, 0.6, 1.0) if paint.colour else (0.3, 1.0)
    if legend.signed:
        steps = (*(-s for s in reversed(steps) if s), *steps)
    scale = Text("  ")
    for relative in steps:
        scale.append(f" {paint.marks(relative, legend.signed)} ".ljust(3), paint.style(relative, legend.signed))
    return Text.assemble((f"  {''.join(legend.low)}", "dim"), scale, (f"  {''.join(legend.high)}", "dim"))


def _heat_map(row: Sequence[Explanation], level: str, paint: Paint, width: int) -> RenderableType:
    """A heat map of layers by words, in blocks of columns that fit the width."""
    scores = [pieces(e, level) for e in row]
    names = [cut(label(one_line(p.shown(row[0].text)))) for p in scores[0]]
    layers = [f"layer {e.settings['layer']}" for e in row]
    margin = max(map(len, layers)) + 4
    parts: list[RenderableType] = [Text(visible(row[0].method, keep=""), "bold")]
    blocks = _blocks([max(2, cell_len(n)) for n in names], width - margin)
    parts += [_block(names, layers, scores, columns, paint, signed(row[0])) for columns in blocks]
    parts += [indented(f"layer {e.settings['layer']}: {line}") for e in row for line in notes(e)]
    return Group(*parts, Text())


def cut(name: str, most: int = WIDEST) -> str:
    return name if cell_len(name) <= most else set_cell_size(name, most - 1) + "…"


def _blocks(widths: Sequence[int], room: int) -> Iterator[range]:
    start, used = 0, 0
    for index, width in enumerate(widths):
        if index > start and used + width + 1 > room:
            yield range(start, index)
            start, used = index, 0
        used += width + 1
    yield range(start, len(widths))


def _block(
    names: Sequence[str],
    layers: Sequence[str],
    table_of_pieces: Sequence[Sequence[Piece]],
    columns: range,
    paint: Paint,
    signed: bool,
) -> Padding:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    for _ in columns:
        table.add_column(no_wrap=True)
    table.add_row("", *(Text(names[c]) for c in columns))
    for layer, scores in zip(layers, table_of_pieces, strict=True):
        table.add_row(
            Text(layer), *(_cell(scores[c].relative, max(2, cell_len(names[c])), paint, signed) for c in columns)
        )
    return Padding(table, (0, 0, 1, 2), expand=False)


def _cell(relative: float, width: int, paint: Paint, signed: bool) -> Text:
    return Text(
        (paint.marks(relative, signed) or ("" if paint.colour else "·")).ljust(width), paint.style(relative, signed)
    )


def decoded_table(layers: "Mapping[int, Sequence[Decoded]]") -> Table:
    """A row for each token: the words that its state decodes to in each layer, with the probability of the first."""
    table = Table("", *(f"layer {layer}" for layer in layers), box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in zip(*layers.values(), strict=True):
        cells = [f"{' '.join(visible(word, '') for word in d.words)} ({d.probabilities[0]:.2f})" for d in row]
        table.add_row(*map(Text, (visible(row[0].token, ""), *cells)))
    return table
