"""Views of copying: which runs learn to attend, as a table, curves and a page."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from salience.core.stats import Estimate
from salience.views import plots
from salience.views.pages import panels
from salience.views.plots import Axis, Line
from salience.views.schemes import BLUE, ORANGE
from salience.views.trials import Table, page

if TYPE_CHECKING:
    from salience.dynamics.copying import Copying, CopyPoint
    from salience.dynamics.heads import Group, Heads

KINDS = {"permutation": "permutations of {n}", "iid": "i.i.d. from {n}", "distinct": "{n} of {m}"}
GROUPS: "Mapping[Group, str]" = {"bad": "bad heads", "rescued": "bad heads and a good one", "random": "any heads"}
TITLE = "Copying: can attention be learnt without co-occurrence?"


def kind_name(kind: str, length: int) -> str:
    """The kind of sequences in words, such as ``40 of 60``."""
    return KINDS[kind].format(n=length, m=length * 3 // 2)


def copying_table(result: "Copying") -> Table:
    """One row per kind of sequences: how many runs fail, and what successful and failed runs attend to."""
    rows: list[list[str]] = []
    for kind in result.kinds:
        runs, failed = result.of(kind), [run for run in result.of(kind) if not run.learnt]
        learnt = [run for run in runs if run.learnt]
        rows.append(
            [
                kind_name(kind, result.recipe.length),
                str(len(runs)),
                _rate(result.failures(kind), len(failed)),
                _span([float(run.first) for run in learnt if run.first is not None], "{:.0f}"),
                _span([run.last.attention for run in learnt]),
                _span([run.last.accuracy for run in failed]),
                _span([run.last.attention for run in failed]),
            ]
        )
    head = (
        "sequences",
        "runs",
        "failed (95 % interval)",
        "first step ≥ 0.95",
        "attention of successful runs",
        "accuracy of failed runs",
        "attention of failed runs",
    )
    return head, rows


def copying_notes(result: "Copying") -> list[str]:
    """What the numbers mean."""
    recipe = result.recipe
    return [
        f"A run fails if its token accuracy is below 0.95 after {recipe.steps} steps of {recipe.batch} new sequences. "
        "Failed runs often reach full accuracy later, without aligned attention.",
        "Attention is the share of symbols for which the largest weight is on the symbol to copy.",
        "Intervals are exact (Clopper & Pearson); ranges are over runs.",
    ]


def heads_table(result: "Heads") -> Table:
    """One row per group of models with eight heads."""
    rows = [
        [
            GROUPS[group],
            str(len(draws)),
            _rate(result.successes(group), sum(draw.learnt for draw in draws)),
            _span([float(draw.curve[-1].step) for draw in draws if draw.learnt], "{:.0f}"),
            _span([draw.curve[-1].attention for draw in draws]),
        ]
        for group in GROUPS
        if (draws := result.of(group))
    ]
    return ("heads", "models", "learnt (95 % interval)", "steps", "attention of the best head"), rows


def heads_notes(result: "Heads") -> list[str]:
    """What the numbers mean."""
    counts = {v: sum(one.verdict == v for one in result.checked) for v in ("good", "bad", "neither")}
    return [
        f"Of {len(result.checked)} initialisations of a single head, {counts['good']} are good (accuracy of at least "
        f"0.95 within {result.recipe.steps} steps, in three trainings), {counts['bad']} bad (attention on less than "
        f"0.6 of the symbols) and {counts['neither']} neither.",
        "All models start from the same weights except for their heads, and each reads sequences of its own. Models "
        "of a group share heads, of which there are few, so that the intervals are those for these heads.",
    ]


def _rate(estimate: Estimate, number: int) -> str:
    return f"{number} of {estimate.n} ({estimate.interval})"


def _span(values: Sequence[float], form: str = "{:.2f}") -> str:
    """The range of some values."""
    ends = list(dict.fromkeys(form.format(end) for end in (min(values), max(values)))) if values else []
    return " to ".join(ends) or "–"


def copying_charts(result: "Copying") -> str:
    """Token accuracy and attention accuracy of every run against the step, one panel per kind of sequences."""
    groups = {
        kind_name(kind, result.recipe.length): [(f"seed {run.seed}", run.learnt, run.curve) for run in result.of(kind)]
        for kind in result.kinds
    }
    return _curves(groups)


def heads_charts(result: "Heads") -> str:
    """Token accuracy and attention accuracy of models with eight heads against the step."""
    groups = {
        GROUPS[group]: [(f"model {draw.draw}", draw.learnt, draw.curve) for draw in draws]
        for group in GROUPS
        if (draws := result.of(group))
    }
    return _curves(groups)


LEGEND = "Each line is one run. Solid blue runs learnt the task; dashed orange ones failed."


def _curves(groups: "Mapping[str, Sequence[tuple[str, bool, Sequence[CopyPoint]]]]") -> str:
    """Two panels for each group of runs, and the last numbers of every run behind them."""
    charts: dict[str, bytes] = {}
    for measure in ("accuracy", "attention"):
        for group, runs in groups.items():
            series = [
                Line(
                    name,
                    [point.step for point in curve],
                    [getattr(point, measure) for point in curve],
                    BLUE if learnt else ORANGE,
                    not learnt,
                )
                for name, learnt, curve in runs
            ]
            made = plots.bare(series, Axis("step"), Axis("", ends=(0, 1)))
            charts[f"{MEASURED[measure]}, {group}"] = plots.svg(made)
    rows = [
        (group, name, "learnt" if learnt else "failed", f"{curve[-1].accuracy:.3f}", f"{curve[-1].attention:.3f}")
        for group, runs in groups.items()
        for name, learnt, curve in runs
    ]
    head = ("sequences", "run", "", "token accuracy at the end", "attention accuracy at the end")
    return f"<p>{LEGEND}</p>{panels(charts, LEGEND, (head, rows))}"


MEASURED = {"accuracy": "token accuracy", "attention": "attention accuracy"}


def copying_page(result: "Copying") -> str:
    """A self-contained HTML page."""
    return page(TITLE, copying_table(result), copying_notes(result), copying_charts(result))


def heads_page(result: "Heads") -> str:
    """A self-contained HTML page."""
    title = "Copying: does one good head rescue a model of eight?"
    return page(title, heads_table(result), heads_notes(result), heads_charts(result))
