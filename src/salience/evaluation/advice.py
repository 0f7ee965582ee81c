"""Summarises an evaluation in words. Every sentence quotes the figures it rests on."""

from collections.abc import Iterator, Mapping, Sequence

from salience.core.stats import LEVEL, Difference
from salience.evaluation.table import Cell, Evaluation, ranked

TESTED = f"p ≤ {LEVEL:g}, corrected for all methods and metrics"
"""How differences are tested; see :func:`salience.core.stats.differences`."""

RANKINGS = {
    "position": "ranks the first words highest",
    "recency": "ranks the last segments highest",
    "similarity": "ranks the segments highest that share most words with the answer",
}
"""The controls that may do well without knowing the model."""


def verdict(evaluation: Evaluation) -> list[str]:
    """The recommendation, followed by the details of each metric."""
    return [*advice(evaluation), *details(evaluation)]


def details(evaluation: Evaluation) -> list[str]:
    """For each metric, which methods are better than random, and which are indistinguishable from the best."""
    return [sentence for metric in evaluation.metrics for sentence in _metric(evaluation, metric, evaluation.real)]


def _metric(evaluation: Evaluation, metric: str, real: Sequence[str]) -> Iterator[str]:
    real = [m for m in real if evaluation.cells[m, metric].estimate.n]
    cells = [evaluation.cells[m, metric] for m in real]
    if cells and cells[0].aspect == "robustness":
        yield _robustness(cells)
        return
    random = _mean(evaluation, "random", metric)
    better = sorted((c for c in cells if c.beats_random), key=lambda c: -abs(_against_random(c).mean))
    rest = [c for c in cells if not c.beats_random]
    if better:
        listed = "; ".join(f"{c.method} {c.estimate.mean:.3f}, difference {_against_random(c):.3f}" for c in better)
        yield f"{metric}: significantly better than random (mean {random}; {TESTED}): {listed}."
    if rest:
        listed = "; ".join(f"{c.method} {c.estimate.mean:.3f}, {_tested(_against_random(c))}" for c in rest)
        yield f"{metric}: not significantly better than random (mean {random}; {TESTED}): {listed}."
    best, *others = _among_best(evaluation, metric, real)
    if others:
        listed = "; ".join(f"{name}, {_tested(_against_best(evaluation, name, metric))}" for name in others)
        yield (
            f"{metric}: {best} has the best mean; none is significantly better ({TESTED}, with an interval that "
            f"excludes 0) than {listed}."
        )


def _robustness(cells: Sequence[Cell]) -> str:
    """Robustness metrics are not compared with controls, which ignore the model and so never change with it."""
    measured = (
        "absolute rank correlation with the explanations of a model with shuffled parameters"
        if cells[0].metric == "parameter_randomisation"
        else "relative change of the scores"
    )
    listed = "; ".join(f"{c.method} {c.estimate}" for c in sorted(cells, key=lambda c: c.estimate.mean))
    return f"{cells[0].metric}: {measured}, lowest first: {listed}."


def _against_random(cell: Cell) -> Difference:
    assert cell.against_random is not None
    return cell.against_random


def _against_best(evaluation: Evaluation, name: str, metric: str) -> Difference:
    difference = evaluation.cells[name, metric].against_best
    assert difference is not None
    return difference


def _tested(difference: Difference) -> str:
    return f"difference {difference:.3f} (corrected p = {difference.p:.2g})"


def _among_best(evaluation: Evaluation, metric: str, real: Sequence[str]) -> list[str]:
    """The method with the best mean, then the others than which none is significantly better: a confidence set."""
    best, cells = evaluation.best(metric), {name: evaluation.cells[name, metric] for name in real}
    return [best, *(name for name, c in cells.items() if name != best and c.estimate.n and not c.beaten_by)]


def _metrics_of(evaluation: Evaluation, aspect: str) -> list[str]:
    return [m for m in evaluation.metrics if evaluation.cells["random", m].aspect == aspect]


def advice(evaluation: Evaluation) -> list[str]:
    """Which method to use for this model and data, and which agrees best with human rationales."""
    return list(_advice(evaluation, evaluation.real))


def _advice(evaluation: Evaluation, real: Sequence[str]) -> Iterator[str]:
    faithfulness = _metrics_of(evaluation, "faithfulness")
    if {"hiding_area", "revealing_area"} <= set(faithfulness):
        faithfulness.remove("revealing_area")  # the same curve, read from the other end
    if faithfulness:
        yield from _faithful(evaluation, faithfulness, real)
    plausibility = _metrics_of(evaluation, "plausibility")
    if measured := [m for m in plausibility if evaluation.cells["random", m].estimate.n]:
        yield from _plausible(evaluation, measured[0], real)


def _plausible(evaluation: Evaluation, metric: str, real: Sequence[str]) -> Iterator[str]:
    cells = {name: evaluation.cells[name, metric] for name in real}
    proven = [name for name in real if cells[name].beats_random]
    best = ranked({name: cells[name].estimate for name in proven or real}, cells[real[0]].better)[0]
    others = [name for name in _among_best(evaluation, metric, real) if name != best]
    figures = f"{best} ({metric} {cells[best].estimate}; random {_mean(evaluation, 'random', metric)})"
    tied = f" Statistically indistinguishable from the best mean: {', '.join(others)}." if others else ""
    if proven:
        yield (
            f"Best agreement with human rationales: {figures}. This measures plausibility, not what the model "
            f"uses.{tied}"
        )
    else:
        yield (
            f"No method agrees with human rationales significantly better than random ({TESTED}). The best mean is "
            f"that of {figures}."
        )
    if ahead := [name for name in evaluation.controls if evaluation.ahead(name, best, metric)]:
        means = ", ".join(f"{name} ({_mean(evaluation, name, metric)})" for name in ahead)
        yield f"Caution: {best} has a lower mean than controls that ignore the model: {means}."


def _faithful(evaluation: Evaluation, metrics: Sequence[str], real: Sequence[str]) -> Iterator[str]:
    """Recommend the methods that are among the best on the most metrics, if one of them is better than random.

    Methods that are equal are named together: a method is not preferred for being significantly better than random
    where another just fails to be, since the difference between the two may well be none.
    """
    measured = [m for m in metrics if any(evaluation.cells[name, m].estimate.n for name in real)]
    if not measured:
        yield _unmeasured(evaluation, metrics)
        return
    metrics = measured
    best = {m: _among_best(evaluation, m, real) for m in metrics}
    among = {name: [m for m in metrics if name in best[m]] for name in real}
    named = [name for name in real if len(among[name]) == max(map(len, among.values()))]
    proven = {name: [m for m in metrics if evaluation.cells[name, m].beats_random] for name in named}
    tested = f"{', '.join(metrics)}; n = {plural(evaluation.texts, 'text')}"
    if not any(proven.values()):
        which = "None of these methods" if len(named) == len(real) else f"The best of these methods, {_either(named)},"
        negation = "is" if len(named) == len(real) else "is not"
        yield (
            f"{which} {negation} significantly better than random ({TESTED}) on any faithfulness metric ({tested}). "
            "Do not rely on them yet; evaluate on more texts."
        )
        return
    beaten = {
        control: [m for m in metrics if all(evaluation.ahead(control, name, m) for name in named)]
        for control in RANKINGS
        if control in evaluation.controls
    }
    if any(len(own) == len(metrics) for own in beaten.values()):
        start = f"The most faithful of these methods for {evaluation.model} on these texts is {_either(named)}"
    else:
        start = f"For {evaluation.model} on these texts, use {_either(named)}"
    yield f"{start}: {_reasons(evaluation, metrics, named, among)}"
    yield from _against_controls(evaluation, metrics, named, proven, beaten)


def _unmeasured(evaluation: Evaluation, metrics: Sequence[str]) -> str:
    """Say that no metric has a value, and why: those of answers leave out segments, and keep others."""
    nothing = f"Nothing could be measured: no value of {joined(metrics, 'or')} is defined on these texts"
    if "by" not in evaluation.settings:
        return f"{nothing}."
    return f"{nothing}, because no prompt has more segments than are left out, so choose smaller ones such as by=word."


def _reasons(
    evaluation: Evaluation, metrics: Sequence[str], named: Sequence[str], among: Mapping[str, Sequence[str]]
) -> str:
    uncounted = ", ".join(_metrics_of(evaluation, "leave_one_out"))
    return (
        f"{'it is' if len(named) == 1 else 'each is'} best or statistically indistinguishable from the best on "
        f"{len(among[named[0]])} of {plural(len(metrics), 'faithfulness metric')} ({', '.join(metrics)}; all pairs of "
        f"{plural(len(evaluation.real), 'method')} were compared, {TESTED}; "
        f"n = {plural(evaluation.texts, 'text')}, erasure: {evaluation.settings['erase']}"
        f"{f'; not counted, being defined by occlusion: {uncounted}' if uncounted else ''})."
    )


def _against_controls(
    evaluation: Evaluation,
    metrics: Sequence[str],
    named: Sequence[str],
    proven: Mapping[str, Sequence[str]],
    beaten: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    counts = "; ".join(
        f"{joined(names, 'and')} on {number if number else 'none'} of {plural(len(metrics), 'faithfulness metric')}"
        for number, names in _by_count({name: len(own) for name, own in proven.items()})
    )
    yield f"Significantly better than random ({TESTED}): {counts}."
    for control, lost in beaten.items():
        means = ", ".join(
            f"{m} ({_mean(evaluation, control, m)}; {', '.join(f'{x} {_mean(evaluation, x, m)}' for x in named)})"
            for m in lost
        )
        if lost:
            yield f"Caution: {control}, a control that {RANKINGS[control]}, has a better mean on {means}."


def _by_count(counts: Mapping[str, int]) -> list[tuple[int, list[str]]]:
    """Names by their count, the highest count first."""
    return [
        (number, [name for name in counts if counts[name] == number])
        for number in sorted(set(counts.values()), reverse=True)
    ]


def _either(names: Sequence[str]) -> str:
    return joined(names, "or")


def joined(names: Sequence[str], word: str) -> str:
    """The names in a sentence.

    >>> joined(["gradient", "lrp", "lime"], "or")
    'gradient, lrp or lime'
    """
    return f" {word} ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def plural(number: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "text"), plural(2, "text")
    ('1 text', '2 texts')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _mean(evaluation: Evaluation, method: str, metric: str) -> str:
    return f"{evaluation.cells[method, metric].estimate.mean:.3f}"
