"""Views of explained answers: a heat map of answer × source, for the terminal, for pages and as an image."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from salience.core.characters import visible
from salience.views.charts import drawn
from salience.views.colours import LIGHT, hexadecimal, shade
from salience.views.pages import document, figure

if TYPE_CHECKING:
    from rich.console import RenderableType

    from salience.generation import AnswerExplanation

CELL = 26
Grid = tuple[list[str], list[str], list[list[float]]]
"""Words of the source, words of the answer, and their scores."""


def grid(e: "AnswerExplanation", level: str = "word") -> Grid:
    """The rows and columns to show: words, or the tokens of the model."""
    if level == "word":
        return e.words()
    return list(e.source_tokens), list(e.answer_tokens), [list(row) for row in e.matrix]


def relative(matrix: Sequence[Sequence[float]], *, signed: bool) -> list[list[float]]:
    """Each row on a scale of its own: its strongest score is 1 or −1. Scores that are all negative are shown from the
    lowest, which is 0.
    """
    rows: list[list[float]] = []
    for row in matrix:
        low = min(row) if signed and max(row) < 0 else 0.0
        size = max((abs(value - low) for value in row), default=0.0)
        rows.append([(value - low) / size if size else 0.0 for value in row])
    return rows


def terminal(e: "AnswerExplanation", level: str = "word", *, colour: bool = True) -> "RenderableType":
    """A table with the answer down and the source across; each word of the answer has its own scale."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    source, answer, matrix = grid(e, level)
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    made.add_column("")
    for word in source:
        made.add_column(Text(visible(word, keep="")), justify="right")
    for word, row, shares in zip(answer, matrix, relative(matrix, signed=e.signed), strict=True):
        cells = [
            Text(f"{value:.2f}", style=_style(share, e.signed) if colour else "bold" if share == max(shares) else "")
            for value, share in zip(row, shares, strict=True)
        ]
        made.add_row(Text(visible(word, keep=""), style="bold"), *cells)
    return Group(Text(f"{visible(e.prompt, keep='')} → {visible(e.answer, keep='')}"), Text(title(e), "dim"), made)


def _style(share: float, signed: bool) -> str:
    return f"black on {hexadecimal(shade(share, LIGHT, signed))}"


def title(e: "AnswerExplanation") -> str:
    """The method with its settings, and the explained number."""
    settings = "".join(f", {name}={value}" for name, value in e.settings.items())
    return f"{e.method}{settings}; {e.target.kind.replace('_', ' ')} of each word of the answer"


def heat_map(content: Grid, *, signed: bool = False, name: str = "") -> Any:
    """An altair chart of one matrix: source across, answer down, each row on its own scale."""
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
        for t, row in enumerate(relative(matrix, signed=signed))
        for s, share in enumerate(row)
    ]
    labels = {
        axis: "[" + ",".join(f"'{_quoted(w)}'" for w in words) + "][+datum.value]"
        for axis, words in (("x", source), ("y", answer))
    }
    return (
        alt.Chart(alt.Data(values=values), title=name, width=CELL * len(source), height=CELL * len(answer))
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

    maps = [heat_map(grid(e, level), signed=e.signed, name=title(e)) for e in explanations]
    return drawn(alt.vconcat(*maps), kind)


def page(explanations: "Sequence[AnswerExplanation]", *, level: str = "word") -> str:
    """A self-contained HTML page."""
    parts = [
        f"<h2>{escape(e.prompt)} → {escape(e.answer)}</h2>{figure(picture([e], 'svg', level=level))}"
        for e in explanations
    ]
    return document("Which words made the answer", *parts)
