"""Views of rationale models: accuracy against the share of the text that they read."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from salience.core.files import complete
from salience.views import plots
from salience.views.charts import drawn
from salience.views.plots import Axis, Line
from salience.views.schemes import CYCLE

if TYPE_CHECKING:
    from rich.table import Table

    from salience.training.rationale_models import RationaleResult


def rows(results: "Sequence[RationaleResult]") -> list[dict[str, Any]]:
    """One row per model and measured data set: the rate it was trained for, what it selects, and its accuracy."""
    return [
        {
            "model": str(result.model),
            "kind": result.training.kind or "whole text",
            "rate": 1.0 if result.training.kind is None else result.training.rate,
            "data": name,
            "selected": measures["selected"],
            "accuracy": measures["accuracy"],
        }
        for result in results
        for name, measures in _measured(result).items()
    ]


def _measured(result: "RationaleResult") -> dict[str, Any]:
    last = dict(result.epochs[-1].measures)
    return {**({"validation": last} if last else {}), **result.tests}


def table(results: "Sequence[RationaleResult]") -> "Table":
    """The rows as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("model", "data"):
        made.add_column(name)
    for name in ("rate", "selected", "accuracy"):
        made.add_column(name, justify="right")
    for row in rows(results):
        numbers = (f"{row['rate']:g}", f"{row['selected']:.3f}", f"{row['accuracy']:.3f}")
        made.add_row(row["kind"], Text(row["data"]), *numbers)
    return made


def write_chart(results: "Sequence[RationaleResult]", path: Path) -> Path | None:
    """Draw accuracy against the selected share, if there is more than one model; returns the file."""
    values = rows(results)
    if len({row["model"] for row in values}) < 2:
        return None
    with complete(path) as file:
        file.write(curve(values, "png"))
    return path


def curve(values: Sequence[dict[str, Any]], kind: str) -> bytes:
    """Accuracy against the share of tokens that are read, one line per data set."""
    names = list(dict.fromkeys(row["data"] for row in values))
    series: list[Line] = []
    for name, hue in zip(names, cycle(CYCLE), strict=False):
        own = sorted((row["selected"], row["accuracy"]) for row in values if row["data"] == name)
        series.append(Line(name, [x for x, _ in own], [y for _, y in own], hue))
    x = Axis("share of tokens that the classifier reads", "%", (0, 1))
    return drawn(plots.themed(plots.lines(series, x, Axis("accuracy"))), kind)
