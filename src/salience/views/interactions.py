"""Interactions of pairs: the strongest ones, the text as a tree of groups, and the matrix, in every form."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from salience.core.characters import visible
from salience.core.shares import percent
from salience.views.answers import heat_map
from salience.views.charts import drawn
from salience.views.colours import FAINT, side
from salience.views.html import STYLE, prediction, sentence, text_of
from salience.views.pages import document
from salience.views.sheet import label, notes, pieces

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from salience.explanations.hierarchy import Group
    from salience.explanations.interactions import Interactions
    from salience.views.terminal import Paint

PAIRS = 5
"""The number of pairs that are listed."""
WIDEST = 24
"""The most units of a matrix in a terminal."""
ADDS_UP = 0.05
"""Groups whose halves interact less than this share of the strongest such interaction are not split up further."""
SHOWN = 46
"""The most characters of a group."""
CELL = 3
"""The width of a cell of the matrix in a terminal."""


def name_of(x: "Interactions", start: int, end: int) -> str:
    """The text of neighbouring units on one line, shortened in its middle if it is long."""
    text = x.text[x.spans[start][0] : x.spans[end - 1][1]] or " ".join(x.units[start:end])
    line = label(" ".join(text.split()) or text)
    return line if len(line) <= SHOWN else f"{line[: SHOWN // 2]} … {line[-SHOWN // 2 + 3 :]}"


def relative(x: "Interactions") -> list[list[float]]:
    """The matrix on one scale: the strongest interaction is 1 or -1."""
    strongest = max((abs(pair.score) for pair in x.pairs()), default=0.0) or 1.0
    return [[value / strongest for value in row] for row in x.matrix]


def score_text(x: "Interactions", value: float) -> str:
    return f"{value:+.3f}" if x.signed else f"{value:.3f}"


def shown_groups(x: "Interactions") -> list[tuple[int, "Group"]]:
    """The groups of the tree to show, with their depths: a group inside which effects add up is one line."""
    tree = x.tree()
    strongest = max(abs(group.across) for _, group in tree.walk())

    def splits(group: "Group") -> bool:
        return any(abs(inner.across) > ADDS_UP * strongest for _, inner in group.walk())

    def walk(group: "Group", depth: int) -> "Iterator[tuple[int, Group]]":
        yield depth, group
        if splits(group):
            for half in group.halves:
                yield from walk(half, depth + 1)

    return list(walk(tree, 0))


def meanings(x: "Interactions") -> list[str]:
    """What the numbers mean, and how far they are from what they should add up to."""
    name = label(x.target.name)
    pair = f"+ the two do more for {name} together than apart, - less" if x.signed else "strengths have no sign"
    return [pair, *_error(x), *notes(x.summed())]


def _error(x: "Interactions") -> list[str]:
    error, strongest = x.gaps.get("error"), abs(x.pairs()[0].score)
    if error is None or not strongest:
        return []
    return [f"error of an interaction, with 95 % confidence: at most {percent(error / strongest)} of the strongest"]


# ------------------------------------------------------------------------------------------------------ terminal


def terminal(x: "Interactions", *, paint: "Paint", width: int = 80) -> "RenderableType":
    """The prediction, the words with their interactions shared, the strongest pairs, the tree and the matrix."""
    from rich.console import Group as Rows
    from rich.padding import Padding
    from rich.text import Text

    from salience.views.terminal import prediction as head
    from salience.views.terminal import sentence as words

    e = x.summed()
    parts: list[tuple[str, RenderableType]] = [
        (f"{x.method}, shared by the words", words(e, pieces(e), paint)),
        ("strongest pairs", _pairs(x, paint)),
        *([("groups that belong together", _groups(x))] if x.groups else []),
        ("tree: effects of groups, and interactions of their halves", _tree(x, paint)),
        *([("matrix", _matrix(x, paint))] if len(x.units) <= min(WIDEST, (width - 24) // CELL) else []),
    ]
    lines: list[RenderableType] = [head(e), Text()]
    for title, part in parts:
        lines += [Text(visible(title, keep=""), "bold"), Padding(part, (0, 0, 1, 2), expand=False)]
    return Rows(*lines, *(Text(f"  {line}", "dim") for line in meanings(x)), Text())


def _pairs(x: "Interactions", paint: "Paint") -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    from salience.views.terminal import bar_of, cut

    table = Table.grid(padding=(0, 1))
    pairs = x.pairs()
    strongest = abs(pairs[0].score) or 1.0
    for i, j, score in pairs[:PAIRS]:
        bar = Text(bar_of(abs(score) / strongest, 10).ljust(10), paint.style(score / strongest, x.signed))
        names = [Text(cut(_named(x, u), 20)) for u in (i, j)]
        table.add_row(names[0], Text("×"), names[1], Text(score_text(x, score), justify="right"), bar)
    return table


def _named(x: "Interactions", unit: int) -> str:
    """A unit, with its number in the matrix if the text has the same one elsewhere."""
    name = label(x.units[unit])
    return f"{name} {unit + 1}" if x.units.count(x.units[unit]) > 1 else name


def _groups(x: "Interactions") -> "Text":
    from rich.text import Text

    return Text(
        "\n".join(f"{effect:+.3f}  {' … '.join(label(x.units[u]) for u in units)}" for units, effect in x.groups)
    )


def _tree(x: "Interactions", paint: "Paint") -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for depth, group in shown_groups(x):
        inner = f"halves {score_text(x, group.across)}" if group.halves and group.across else ""
        name = Text("  " * depth + name_of(x, group.start, group.end), overflow="ellipsis", no_wrap=True)
        table.add_row(name, Text(f"{group.effect:+.3f}", justify="right"), Text(inner, "dim"))
    return table


def _matrix(x: "Interactions", paint: "Paint") -> "RenderableType":
    """The lower half of the matrix; columns have the numbers of the rows."""
    from rich.table import Table
    from rich.text import Text

    from salience.views.terminal import cut

    table = Table.grid(padding=(0, 0))
    shares = relative(x)
    table.add_row("", *(Text(f"{n:>2} ", "dim") for n in range(1, len(x.units) + 1)))
    for n, (unit, row) in enumerate(zip(x.units, shares, strict=True), 1):
        cells = [_cell(share, paint, x.signed) for share in row[: n - 1]]
        table.add_row(Text(f"{n:>2} {cut(label(unit), 14)}  "), *cells)
    return table


def _cell(share: float, paint: "Paint", signed: bool) -> "Text":
    from rich.text import Text

    marks = paint.marks(share, signed) or ("" if paint.colour else "·")
    return Text(marks.rjust(CELL - 1).ljust(CELL), paint.style(share, signed))


# ------------------------------------------------------------------------------------------------------ images


def picture(every: "Sequence[Interactions]", kind: str) -> bytes:
    """The matrices as heat maps, one below the other, as the bytes of a PNG or an SVG."""
    import altair as alt

    maps: list[Any] = [
        heat_map(
            (list(x.units), list(x.units), [list(row) for row in x.matrix]),
            signed=x.signed,
            name=f"{visible(x.method, keep='')}: interactions for {label(x.target.name)}",
            shares=relative(x),
        )
        for x in every
    ]
    return drawn(alt.vconcat(*maps), kind)


# ------------------------------------------------------------------------------------------------------ pages


def page(every: "Sequence[Interactions]") -> str:
    """A self-contained HTML page without scripts or external resources."""
    return document("Interactions", "\n".join(map(_article, every)), style=STYLE + _STYLE)


def fragment(every: "Sequence[Interactions]") -> str:
    """The same as a fragment, for a notebook cell."""
    return f"<div><style>{STYLE}{_STYLE}</style>{''.join(map(_article, every))}</div>"


def _article(x: "Interactions") -> str:
    e = x.summed()
    parts = (
        (x.method, f'<p class="text" dir="auto">{"".join(sentence(e, pieces(e)))}</p>'),
        ("strongest pairs", _pair_rows(x)),
        *([("groups", _group_rows(x))] if x.groups else []),
        ("tree", f'<div class="wide">{_branch(x)}</div>'),
        ("matrix", f'<div class="wide">{_heat(x)}</div>'),
    )
    sections = "".join(f"<section><h2>{text_of(title)}</h2><div>{part}</div></section>" for title, part in parts)
    legend = "".join(f'<p class="quiet">{text_of(line)}</p>' for line in meanings(x))
    return f'<article class="salience">{prediction(e)}{sections}<div class="legend">{legend}</div></article>'


def _pair_rows(x: "Interactions") -> str:
    rows = (
        f"<tr><td><bdi>{text_of(_named(x, i))}</bdi></td><td>×</td>"
        f"<td><bdi>{text_of(_named(x, j))}</bdi></td><td>{score_text(x, score)}</td></tr>"
        for i, j, score in x.pairs()[:PAIRS]
    )
    return f'<table class="pairs">{"".join(rows)}</table>'


def _group_rows(x: "Interactions") -> str:
    rows = (
        f"<tr><td>{text_of(' … '.join(label(x.units[u]) for u in units))}</td><td>{effect:+.3f}</td></tr>"
        for units, effect in x.groups
    )
    return f'<table class="pairs">{"".join(rows)}</table>'


def _branch(x: "Interactions") -> str:
    """The tree as an indented list."""
    lines = (
        f'<div style="margin-inline-start:{1.4 * depth:.1f}rem"><bdi>{text_of(name_of(x, g.start, g.end))}</bdi> '
        f"<b>{g.effect:+.3f}</b>{_halves(x, g)}</div>"
        for depth, g in shown_groups(x)
    )
    return f'<div class="tree" tabindex="0">{"".join(lines)}</div>'


def _halves(x: "Interactions", group: "Group") -> str:
    if not group.halves or not group.across:
        return ""
    return f' <span class="quiet">halves {score_text(x, group.across)}</span>'


def _heat(x: "Interactions") -> str:
    heads = "".join(f'<th scope="col"><span><bdi>{text_of(label(u))}</bdi></span></th>' for u in x.units)
    lines = (
        f'<tr><th scope="row"><bdi>{text_of(label(unit))}</bdi></th>'
        f"{''.join(_square(x, i, j, share) for j, share in enumerate(row))}</tr>"
        for i, (unit, row) in enumerate(zip(x.units, relative(x), strict=True))
    )
    return f'<table class="heat"><thead><tr><td></td>{heads}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _square(x: "Interactions", i: int, j: int, share: float) -> str:
    kind = "" if abs(share) < FAINT else side(share, x.signed)
    title = escape(f"{label(x.units[i])} × {label(x.units[j])} {score_text(x, x.matrix[i][j])}")
    return f'<td class="{kind}" style="--s:{abs(share):.2f}" title="{title}" aria-label="{title}"></td>'


_STYLE = """
.salience .pairs td { padding: .1rem .6rem .1rem 0; }
.salience .pairs td:last-child { font-variant-numeric: tabular-nums; text-align: end; }
.salience .tree { font-size: .95rem; white-space: nowrap; overflow-x: auto; }
.salience .tree b { font-weight: 600; font-variant-numeric: tabular-nums; }
"""
