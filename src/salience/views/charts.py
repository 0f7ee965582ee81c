"""Explanations as images. The layout is computed here in pixels; altair renders it as PNG, SVG or in a notebook."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.cells import cell_len

from salience.core.characters import visible
from salience.errors import BadInput, choose
from salience.explanations.explanation import Explanation
from salience.views.colours import FAINT, LIGHT, SIDES, hexadecimal, ink, shade
from salience.views.sheet import (
    Bar,
    Legend,
    Piece,
    Sheet,
    bars,
    explained,
    is_number,
    label,
    legends,
    listed,
    notes,
    number,
    pieces,
    remarks,
    right_to_left,
    sheets,
    split_unread,
)

if TYPE_CHECKING:
    import altair as alt

FONT = "DejaVu Sans Mono, Menlo, Consolas, monospace"
CELL = 0.602
"""Width of a character in a monospaced font, relative to the font size."""
SIZE, SMALL = 15, 12
PLAIN = 13
"""The size of text in charts, as on the pages."""
LINE = 30
WIDTH = 640
"""Width of the sentences, without the method names to their left."""
MARGIN = 22
LONGEST = int((WIDTH - 6) / (SIZE * CELL))
"""Characters of a word or of text between words: one line."""
SQUARE = 26
THIN = 2
"""The least width of a bar."""
QUIET, INK, RULE, BAR = "#6a707a", "#1c1f24", "#e3e2dd", "#8a929d"
KINDS = ("png", "svg")


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle, in pixels."""

    x: float
    y: float
    x2: float
    y2: float
    fill: str
    tooltip: str = ""
    round: float = 3


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text whose left end, or right end or lower end, is at (x, y)."""

    x: float
    y: float
    text: str
    fill: str = INK
    size: float = SIZE
    weight: str = "normal"
    align: str = "left"


@dataclass(slots=True)
class Drawing:
    """The elements to draw, and the current vertical position."""

    left: float
    width: float = 0
    y: float = MARGIN
    boxes: list[Box] = field(default_factory=list[Box])
    words: list[Words] = field(default_factory=list[Words])
    upright: list[Words] = field(default_factory=list[Words])

    def write(self, x: float, text: str, fill: str = INK, size: float = SIZE, weight: str = "normal") -> float:
        """Add a text to the current line; returns its right end."""
        self.words.append(Words(x, self.y + LINE / 2, text, fill, size, weight))
        end = x + _wide(text, size)
        self.width = max(self.width, end)
        return end

    def rule(self) -> None:
        """Add a thin horizontal line; its right end is set once the width is known."""
        self.boxes.append(Box(MARGIN, self.y + 6, -1, self.y + 7, RULE, round=0))
        self.y += 14


def chart(explanations: Sequence[Explanation], *, level: str = "word", view: str = "text") -> "alt.LayerChart":
    """An altair chart of the explanations, one sheet below the other. ``view`` is text, bar or waterfall."""
    import altair as alt

    drawing = _draw(sheets(explanations), level, view)
    width, height = drawing.width + MARGIN, drawing.y + MARGIN / 2
    pixels = {
        "x": alt.X("x:Q", scale=alt.Scale(domain=[0, width], nice=False, zero=False), axis=None),
        "y": alt.Y("y:Q", scale=alt.Scale(domain=[height, 0], nice=False, zero=False), axis=None),
        "color": alt.Color("fill:N", scale=None, legend=None),
    }
    layers = chain(_boxes(drawing, pixels), _texts(drawing.words, 0, pixels), _texts(drawing.upright, 270, pixels))
    made = alt.LayerChart(layer=list(layers))
    return made.properties(width=width, height=height, padding=0).configure_view(stroke=None)


def _boxes(drawing: Drawing, pixels: Mapping[str, Any]) -> "Iterator[alt.Chart]":
    import altair as alt

    rows = [asdict(b) | {"x2": drawing.width if b.x2 < 0 else b.x2} for b in drawing.boxes]
    for radius in sorted({b.round for b in drawing.boxes}):
        data = alt.Data(values=[row for row in rows if row["round"] == radius])
        yield alt.Chart(data).mark_rect(cornerRadius=radius).encode(x2="x2:Q", y2="y2:Q", tooltip="tooltip:N", **pixels)


def _texts(words: Sequence[Words], angle: int, pixels: Mapping[str, Any]) -> "Iterator[alt.Chart]":
    """Text marks, one for each size, weight and alignment."""
    import altair as alt

    for size, weight, align in dict.fromkeys((w.size, w.weight, w.align) for w in words):
        some = [asdict(w) for w in words if (w.size, w.weight, w.align) == (size, weight, align)]
        style: dict[str, Any] = {"fontSize": size, "fontWeight": weight, "align": align, "angle": angle}
        mark = alt.Chart(alt.Data(values=some)).mark_text(font=FONT, baseline="middle", **style)
        yield mark.encode(text="text:N", **pixels)


def picture(explanations: Sequence[Explanation], kind: str, *, level: str = "word", view: str = "text") -> bytes:
    """Render explanations as the bytes of a PNG or an SVG."""
    return drawn(chart(explanations, level=level, view=view), kind)


def drawn(made: Any, kind: str) -> bytes:
    """Render an altair chart as the bytes of a PNG or an SVG."""
    return _rendered(made.to_dict(), kind)


ROOM = 2
"""The points by which the text of a chart is larger while it is laid out."""


def drawn_for_pages(made: Any) -> bytes:
    """Render an altair chart as an SVG for pages, whose text is in the font of the reader.

    That may be wider than the one it is laid out in, and names would be cut off or overlap. So it is laid out with
    larger text. All sizes of text must be in the chart.
    """
    svg = _rendered(_larger(made.to_dict()), "svg").decode()
    return re.sub(r'font-size="(\d+)px"', lambda size: f'font-size="{int(size[1]) - ROOM}px"', svg).encode()


def _larger(spec: Any) -> Any:
    if isinstance(spec, dict):
        items = cast(dict[str, Any], spec).items()
        return {key: value + ROOM if key.lower().endswith("fontsize") else _larger(value) for key, value in items}
    return [_larger(value) for value in cast(list[Any], spec)] if isinstance(spec, list) else spec


def _rendered(made: Any, kind: str) -> bytes:
    import altair as alt
    import vl_convert

    spec, version = _visible(made), "_".join(alt.SCHEMA_VERSION.split(".")[:2])
    if choose(kind, KINDS, "kind of image") == "svg":
        return vl_convert.vegalite_to_svg(spec, vl_version=version).encode()
    return vl_convert.vegalite_to_png(spec, vl_version=version, scale=2)


def _visible(spec: Any) -> Any:
    """A specification in which every string is visible: others abort the process that renders it."""
    if isinstance(spec, str):
        return visible(spec)
    if isinstance(spec, dict):
        return {visible(str(key)): _visible(value) for key, value in cast(dict[object, Any], spec).items()}
    return [_visible(value) for value in cast(list[Any], spec)] if isinstance(spec, list) else spec


def save(explanations: Sequence[Explanation], path: str | Path, *, level: str = "word", view: str = "text") -> None:
    """Write an image; the file name must end in .png or .svg."""
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise BadInput(f"the file name of an image ends in .png or .svg, but got {str(path)!r}; change the ending")
    Path(path).write_bytes(picture(explanations, kind, level=level, view=view))


def _wide(text: str, size: float = SIZE) -> float:
    return cell_len(text) * size * CELL


def _draw(pages: Sequence[Sheet], level: str, view: str = "text") -> Drawing:
    names = [s.title(row[0]) if view == "text" else s.heading(e) for s in pages for row in s.rows for e in row]
    drawing = Drawing(left=MARGIN + 24 + max((_wide(n, SMALL) for n in names), default=0))
    for place, sheet in enumerate(pages):
        if place:
            drawing.y += 2 * MARGIN
        _prediction(drawing, sheet.first)
        if view == "text":
            for e in sheet.single:
                _row(drawing, sheet, e, level)
            for row in sheet.layered:
                _heat_map(drawing, row, level)
        else:
            for e in sheet.every:
                _diagram(drawing, sheet, e, bars(e, level, view), view)
        if view == "text":
            _legend(drawing, sheet)
    return drawing


def _prediction(drawing: Drawing, e: Explanation) -> None:
    x = drawing.write(MARGIN, visible(e.model, keep=""), weight="bold")
    drawing.write(x + 18, f"{explained(e)} = {e.value:.4g}", QUIET, SMALL)
    drawing.y += LINE
    shown, more = listed(e)
    start = MARGIN + max(_wide(label(name), SMALL) for name, _ in shown) + 14
    for name, value in shown:
        requested = name in (e.target.label, e.target.against)
        weight, colour = ("bold", INK) if requested else ("normal", QUIET)
        drawing.write(MARGIN, label(name), colour, SMALL, weight)
        _value(drawing, e, start, value, colour)
        drawing.y += 20
    if more:
        drawing.write(MARGIN, f"and {more} more", QUIET, SMALL)
        drawing.y += 20


def _value(drawing: Drawing, e: Explanation, x: float, value: float, colour: str) -> None:
    if is_number(e):
        drawing.write(x, f"{value:.4g}", colour, SMALL)
        return
    y = drawing.y + LINE / 2
    drawing.boxes.append(Box(x, y - 4, x + 140, y + 4, RULE, round=4))
    drawing.boxes.append(Box(x, y - 4, x + max(140 * value, 1), y + 4, colour, round=4))
    drawing.write(x + 152, f"{100 * value:.1f} %", colour, SMALL)


def _row(drawing: Drawing, sheet: Sheet, e: Explanation, level: str) -> None:
    drawing.y += 6
    drawing.rule()
    drawing.write(MARGIN, sheet.title(e), INK, SMALL, "bold")
    _sentence(drawing, e, pieces(e, level))
    for line in notes(e):
        drawing.write(drawing.left, line, QUIET, SMALL)
        drawing.y += 20


def _diagram(drawing: Drawing, sheet: Sheet, e: Explanation, rows: Sequence[Bar], view: str) -> None:
    """One line for each bar: its name, its score, and the bar itself."""
    drawing.y += 6
    drawing.rule()
    drawing.write(MARGIN, sheet.heading(e), INK, SMALL, "bold")
    names = [_cut(bar.name, 28) for bar in rows]
    scores = drawing.left + max((_wide(name, SMALL) for name in names), default=0) + 12
    start = scores + max((_wide(bar.score, SMALL) for bar in rows), default=0) + 14
    room = max(drawing.left + WIDTH - start, 160)
    for name, bar in zip(names, rows, strict=True):
        drawing.write(drawing.left, name, INK if bar.side else QUIET, SMALL)
        drawing.words.append(Words(start - 14, drawing.y + LINE / 2, bar.score, QUIET, SMALL, align="right"))
        fill = hexadecimal(SIDES[bar.side]) if bar.side else BAR
        left, right = start + room * bar.low, start + room * bar.high
        if right - left < THIN:  # a score against the label ends at 0
            left, right = (right - THIN, right) if bar.side == "against" else (left, left + THIN)
        middle = drawing.y + LINE / 2
        drawing.boxes.append(Box(left, middle - 7, right, middle + 7, fill, f"{name} {bar.score}", 2))
        drawing.y += 20
    drawing.width = max(drawing.width, start + room)
    drawing.y += 12
    for line in remarks(e, view):
        drawing.write(drawing.left, line, QUIET, SMALL)
        drawing.y += 20


@dataclass(frozen=True, slots=True)
class _Placed:
    """A piece of a sentence with its position: pixels from the start of the line, and the line number."""

    x: float
    line: int
    text: str
    piece: Piece | None


def _sentence(drawing: Drawing, e: Explanation, parts: Sequence[Piece]) -> None:
    placed = list(_placed(e, parts))
    mirrored = right_to_left(e.text)
    for one in placed:
        wide = _wide(one.text)
        x = drawing.left + (WIDTH - one.x - wide if mirrored else one.x)
        y = drawing.y + one.line * LINE
        colour = INK if one.piece is None else _box(drawing, e, one.piece, x, y, wide)
        drawing.words.append(Words(x + wide / 2, y + LINE / 2, one.text, colour, align="center"))
        drawing.width = max(drawing.width, x + wide + 3)
    drawing.y += LINE * (max((p.line for p in placed), default=0) + 1)


def _box(drawing: Drawing, e: Explanation, piece: Piece, x: float, y: float, wide: float) -> str:
    """Draw the background of a piece; returns the colour of its text."""
    ground = shade(piece.relative, LIGHT, piece.signed)
    tooltip = f"{_named(e, piece)} {number(e, piece.score)}"
    drawing.boxes.append(Box(x - 3, y + 3, x + wide + 3, y + LINE - 3, hexadecimal(ground), tooltip))
    return QUIET if piece.name and abs(piece.relative) < 0.3 else hexadecimal(ink(ground))


def _placed(e: Explanation, parts: Sequence[Piece]) -> Iterator[_Placed]:
    """Lay out the sentence in lines, wrapped between words and at line breaks of the text."""
    x, line = 0.0, 0
    for text, piece, space, breaks in _runs(e, parts):
        wide = _wide(text)
        x += space if x else 3
        if breaks or (x > 3 and x + wide > WIDTH - 3):
            x, line = 3.0, line + 1
        yield _Placed(x, line, text, piece)
        x += wide + 2


def _runs(e: Explanation, parts: Sequence[Piece]) -> Iterator[tuple[str, Piece | None, float, bool]]:
    """Pieces and the text between them, each with the space before it and whether it starts a new line."""
    at = 0
    for piece in parts:
        if piece.blank(e.text) and abs(piece.relative) < FAINT:
            continue
        between = e.text[at : piece.start]
        yield from _between(e, at, piece.start)
        yield _named(e, piece), piece, 6 if between or piece.name else 4, "\n" in between and not between.strip()
        # White space that is marked still separates its neighbours and breaks the line.
        at = max(at, piece.start if piece.blank(e.text) else piece.end)
    yield from _between(e, at, len(e.text))


def _between(e: Explanation, start: int, end: int) -> Iterator[tuple[str, None, float, bool]]:
    """Text without a score; for text that the model did not read, only its length."""
    for part, unread in split_unread(e, start, end):
        if unread:
            yield f"… ({len(part)} characters not read)", None, 6, "\n" in e.text[start:end]
        elif part.strip():
            yield _short(part.strip()), None, 6, "\n" in part


def _named(e: Explanation, piece: Piece) -> str:
    shown = piece.shown(e.text)
    return _short(shown.strip() or shown)


def _short(text: str) -> str:
    """As much of a text as fits into a line; rendering what does not fit would take minutes."""
    return _cut(label(text[: LONGEST + 1]), LONGEST)


def _heat_map(drawing: Drawing, row: Sequence[Explanation], level: str) -> None:
    """A heat map of layers by words, in blocks that fit the width."""
    table = [pieces(e, level) for e in row]
    names = [_cut(_named(row[0], p)) for p in table[0]]
    drawing.y += 6
    drawing.rule()
    drawing.write(MARGIN, visible(row[0].method, keep=""), INK, SMALL, "bold")
    across = WIDTH // SQUARE - 2
    for start in range(0, len(names), across):
        columns = range(start, min(start + across, len(names)))
        _block(drawing, row, table, names, columns)


def _cut(name: str, most: int = 16) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _block(
    drawing: Drawing,
    row: Sequence[Explanation],
    table: Sequence[Sequence[Piece]],
    names: Sequence[str],
    columns: range,
) -> None:
    first = drawing.left + 2 * SQUARE + 8
    drawing.y += max(_wide(names[c], SMALL) for c in columns) + 12
    for place, c in enumerate(columns):
        drawing.upright.append(Words(first + (place + 0.5) * SQUARE, drawing.y - 6, names[c], size=SMALL))
    for e, line in zip(row, table, strict=True):
        middle = drawing.y + SQUARE / 2
        drawing.words.append(Words(first - 8, middle, f"layer {e.settings['layer']}", QUIET, SMALL, align="right"))
        for place, c in enumerate(columns):
            x, colour = first + place * SQUARE, hexadecimal(shade(line[c].relative, LIGHT, line[c].signed))
            tooltip = f"layer {e.settings['layer']}: {names[c]} {number(e, line[c].score)}"
            drawing.boxes.append(Box(x + 1, drawing.y + 1, x + SQUARE - 1, drawing.y + SQUARE - 1, colour, tooltip))
        drawing.width = max(drawing.width, first + len(columns) * SQUARE)
        drawing.y += SQUARE
    drawing.y += 10


def _legend(drawing: Drawing, sheet: Sheet) -> None:
    drawing.y += 6
    drawing.rule()
    x = 0.0
    for place, legend in enumerate(legends(sheet)):
        drawing.y += LINE if place else 0
        x = _scale(drawing, legend)
    if len(sheet.rows) > 1 or sheet.layered:
        drawing.write(x + 18, "each row has its own scale", QUIET, SMALL)
    drawing.y += LINE


def _scale(drawing: Drawing, legend: Legend) -> float:
    """Draw one line of the legend; returns its right end."""
    x, y = drawing.write(MARGIN, "".join(legend.low), QUIET, SMALL) + 10, drawing.y + LINE / 2
    for relative in (-1.0, -0.66, -0.33, 0.0, 0.33, 0.66, 1.0) if legend.signed else (0.0, 0.33, 0.66, 1.0):
        drawing.boxes.append(Box(x, y - 7, x + 22, y + 7, hexadecimal(shade(relative, LIGHT, legend.signed))))
        x += 24
    return drawing.write(x + 8, "".join(legend.high), QUIET, SMALL)
