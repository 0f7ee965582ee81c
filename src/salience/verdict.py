"""An evaluation in plain words, each sentence with the figures it rests on."""

from collections.abc import Iterator, Sequence

from salience.evaluation import CONTROLS, Cell, Evaluation, best_of
from salience.stats import Difference


def verdict(found: Evaluation) -> list[str]:
    """Which method to use for this model and data; then which beat random, and which cannot be told apart."""
    return [*advice(found), *details(found)]


def details(found: Evaluation) -> list[str]:
    """Metric by metric, which methods beat random, and which cannot be told apart."""
    return [sentence for metric in found.metrics for sentence in _metric(found, metric, found.real)]


def _metric(found: Evaluation, metric: str, real: Sequence[str]) -> Iterator[str]:
    real = [m for m in real if found.cells[m, metric].estimate.n]
    cells = [found.cells[m, metric] for m in real]
    if cells and cells[0].aspect == "robustness":
        yield _steadiness(cells)
        return
    floor = found.cells["random", metric].estimate
    ahead = sorted((c for c in cells if c.beats_random), key=lambda c: -abs(_floor(c).mean))
    rest = [c for c in cells if not c.beats_random]
    if ahead:
        names = "; ".join(f"{c.method} {c.estimate.mean:.3f}, by {_floor(c):.3f}" for c in ahead)
        yield f"{metric}: beyond doubt better than random ({floor.mean:.3f}) {_are(ahead)} {names}."
    if rest:
        names = "; ".join(f"{c.method} {c.estimate.mean:.3f}, {_tested(_floor(c))}" for c in rest)
        methods = plural(len(found.real), "method")
        yield (
            f"{metric}: not shown to be better than random ({floor.mean:.3f}), once p is corrected for {methods}, "
            f"{_are(rest)} {names}."
        )
    alike = _like_best(found, metric, real)
    if len(alike) > 1:
        best, *others = alike
        names = "; ".join(f"{name} {_tested(_gap(found, name, metric))}" for name in others)
        yield f"{metric}: {best} is best, and not to be told apart from it {_are(others)} {names}."


def _steadiness(cells: Sequence[Cell]) -> str:
    """Controls are no measure here: what never looks at the model never moves with it."""
    said = {"parameter_randomisation": "how alike explanations of a model that knows nothing are, the least first"}
    names = "; ".join(f"{c.method} {c.estimate}" for c in sorted(cells, key=lambda c: c.estimate.mean))
    return f"{cells[0].metric}: {said.get(cells[0].metric, 'how far explanations move, the steadiest first')}: {names}."


def _are(cells: Sequence[object]) -> str:
    return "is" if len(cells) == 1 else "are"


def _floor(cell: Cell) -> Difference:
    assert cell.against_random is not None
    return cell.against_random


def _tested(difference: Difference) -> str:
    return f"{difference:.3f} (p = {difference.p:.2g})"


def _gap(found: Evaluation, name: str, metric: str) -> Difference:
    difference = found.cells[name, metric].against_best
    assert difference is not None
    return difference


def _like_best(found: Evaluation, metric: str, real: Sequence[str]) -> list[str]:
    """The best method first, then those whose difference from it may be chance."""
    best = found.best(metric)
    others = [m for m in real if m != best and found.cells[m, metric].estimate.n]
    return [best, *(m for m in others if not _gap(found, m, metric).clear)]


def _about(found: Evaluation, aspect: str) -> list[str]:
    return [m for m in found.metrics if found.cells["random", m].aspect == aspect]


def advice(found: Evaluation) -> list[str]:
    """Which method to use, and which one people would."""
    return list(_advice(found, found.real))


def _advice(found: Evaluation, real: Sequence[str]) -> Iterator[str]:
    of = _about(found, "faithfulness")
    if {"hiding_area", "revealing_area"} <= set(of):
        of.remove("revealing_area")  # the same, read from the other end
    if of:
        yield from _faithful(found, of, real)
    marked = [m for m in _about(found, "plausibility") if found.cells["random", m].estimate.n]
    if marked:
        yield from _plausible(found, marked[0], real)


def _plausible(found: Evaluation, metric: str, real: Sequence[str]) -> Iterator[str]:
    proven = [m for m in real if found.cells[m, metric].beats_random]
    best = best_of({m: found.cells[m, metric].estimate for m in proven or real}, found.cells[real[0], metric].better)
    others = [m for m in _like_best(found, metric, real) if m != best]
    figures = f"({metric} {found.cells[best, metric].estimate}, random {_mean(found, 'random', metric)})"
    alike = f" Not to be told apart from it {_are(others)} {', '.join(others)}." if others else ""
    if proven:
        yield (
            f"What people have marked is met best by {best} {figures}; that says what looks right, not what the model "
            f"uses.{alike}"
        )
    else:
        yield f"No method is shown to meet what people have marked better than random; first is {best} {figures}."
    if ahead := [name for name in CONTROLS if found.ahead(name, best, metric)]:
        means = ", ".join(f"{name} ({_mean(found, name, metric)})" for name in ahead)
        yield f"Beware: on the mean, {best} is behind {means}, which never look at the model."


def _faithful(found: Evaluation, of: Sequence[str], real: Sequence[str]) -> Iterator[str]:
    """Which methods to use: those that are shown to be better than random, and are among the best, most often."""
    proven = {name: [m for m in of if found.cells[name, m].beats_random] for name in real}
    among = {name: [m for m in proven[name] if name in _like_best(found, m, real)] for name in real}
    score = {name: (len(among[name]), len(proven[name])) for name in real}
    use = max(real, key=lambda name: score[name])
    if not proven[use]:
        yield (
            f"None of these methods is shown to be better than random on {plural(found.texts, 'text')}: believe none "
            "of them yet, and measure more texts."
        )
        return
    alike = [name for name in real if score[name] == score[use]]
    where = f" ({', '.join(proven[use])})" if all(proven[name] == proven[use] for name in alike) else ""
    worse = [m for m in of if found.ahead("position", use, m)]
    alone = ", ".join(_about(found, "leave_one_out"))
    reasons = (
        f"of {plural(len(of), 'measure')} of faithfulness {'it beats' if len(alike) == 1 else 'each beats'} random "
        f"beyond doubt on {len(proven[use])}{where} and is among these the best, or not to be told "
        f"apart from it, on {len(among[use])} (n = {found.texts}, tokens erased by {found.settings['erase']}"
        f"{f'; {alone}, set by occlusion, does not count' if alone else ''})."
    )
    chosen = " or ".join(alike)
    if len(worse) == len(of):
        yield f"For {found.model} and these texts the best of the methods is {chosen}: {reasons}"
    else:
        yield f"For {found.model} and these texts use {chosen}: {reasons}"
    if worse:
        means = ", ".join(f"{m} ({_mean(found, 'position', m)}, {use} {_mean(found, use, m)})" for m in worse)
        yield f"Beware: to name the first words of every text is on the mean no worse on {means}."


def plural(number: int, what: str) -> str:
    """Such as "1 text", "2 texts"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _mean(found: Evaluation, method: str, metric: str) -> str:
    return f"{found.cells[method, metric].estimate.mean:.3f}"
