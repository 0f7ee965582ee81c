"""SalLM: saliency-guided language models, four variants on SST-5, with controls.

The poster trains BERT-base as a teacher, binarises its gradient saliency, and trains again with the attention loss. λ
and the share of marked tokens are not published; both are selected here on the validation set.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, product
from math import isnan
from pathlib import Path
from typing import Any

from salience.core.files import complete
from salience.core.jobs import Facts, run_jobs
from salience.core.stats import Difference, Spread, corrected, paired_difference
from salience.data import Source
from salience.data.examples import Example, examples
from salience.models import load
from salience.papers.verdict import verdict
from salience.training.distillation import (
    WITHOUT_TEACHER,
    Callbacks,
    Control,
    Distillation,
    DistillationResult,
    Variant,
    distil,
)
from salience.training.loop import Recipe
from salience.training.monitors import correct

PUBLISHED = {
    "vanilla": ("51.07 ± 0.52", "53.83 ± 0.42"),
    "sallm": ("51.77 ± 0.76", "54.22 ± 0.19"),
    "fine_tuned": ("51.13 ± 0.92", "53.27 ± 0.21"),
    "iterative": ("51.53 ± 0.41", "53.45 ± 1.05"),
}
"""Validation and test accuracy in the poster: BERT-base, SST-5, 3 seeds, mean ± standard deviation."""

TAUGHT: tuple[Variant, ...] = ("sallm", "fine_tuned", "iterative")
"""The variants that learn from explanations."""

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""(header, rows)"""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the experiment."""

    seeds: int
    epochs: int
    weights: tuple[float, ...]
    shares: tuple[float, ...]


SIZES = {
    "quick": Size(seeds=2, epochs=1, weights=(1.0,), shares=(0.2,)),
    "full": Size(seeds=5, epochs=2, weights=(0.1, 1.0), shares=(0.1, 0.3)),
}


@dataclass(frozen=True, slots=True)
class VariantRow:
    """The results of one variant over all seeds."""

    variant: str
    test: Spread
    """Test accuracy in per cent."""
    others: Mapping[str, Spread]
    """Accuracy on other data in per cent."""
    measures: Mapping[str, Spread]
    """Measures on the validation texts. Attention is compared with the explanations of the vanilla teacher, except for
    ``iterative``, whose teacher is the student of ``sallm``."""
    against_vanilla: Difference | None
    """The difference in test accuracy, in percentage points; None for vanilla itself. p is corrected for the table."""
    against_shuffled: Difference | None
    """The same difference from the control taught by shuffled explanations; None for vanilla and the controls."""

    @property
    def verdict(self) -> str:
        """What explanations did to the accuracy; what random ones do as well is no gain of theirs.

        ``fine_tuned`` is trained twice as long as vanilla and as the control, which may be all of its gain.
        """
        if self.variant == "fine_tuned":
            return "not comparable: trained twice as long"
        controlled = self.variant in TAUGHT
        return verdict(self.against_vanilla, self.against_shuffled, seeds=len(self.test.values), controlled=controlled)

    @property
    def validation(self) -> Spread:
        return Spread(tuple(100 * value for value in self.measures["accuracy"].values))


@dataclass(frozen=True, slots=True)
class SallmResult:
    """The results of all variants, with the settings of the experiment."""

    model: str
    method: str
    size: Size
    recipe: Recipe
    chosen: Mapping[str, float]
    grid: Sequence[Mapping[str, float]]
    """Validation accuracy of sallm with seed 0 for each λ and share."""
    rows: Sequence[VariantRow]


@dataclass(frozen=True, slots=True)
class Training:
    """One training run of the experiment."""

    variant: Variant
    seed: int
    weight: float = 1.0
    share: float = 0.2

    def __str__(self) -> str:
        settings = "" if self.variant == "vanilla" else f"-{self.weight:g}-{self.share:g}"
        return f"{self.variant}{settings}-seed-{self.seed}"


@dataclass(frozen=True, slots=True)
class Experiment:
    """What all training runs share. Each has its own folder and is run once."""

    model: str
    train: Source
    validation: Source
    tests: Mapping[str, Source]
    folder: Path
    recipe: Recipe
    method: str
    settings: Mapping[str, Any]
    options: Mapping[str, Any]

    def run(self, training: Training, callbacks: Callbacks = Callbacks()) -> DistillationResult:  # noqa: B008
        teacher = self.teacher(training)
        return distil(
            self.model,
            self.train,
            self.folder / str(training),
            self._settings(training),
            validation=self.validation,
            tests=self.tests,
            teacher=None if teacher is None else self.folder / str(teacher) / "student",
            explanations_folder=None if teacher is None else self.folder / f"explanations-{teacher}",
            callbacks=callbacks,
            **self.options,
        )

    def _settings(self, one: Training) -> Distillation:
        # One round: the teacher of iterative is the student of sallm, itself a student of vanilla.
        recipe = replace(self.recipe, seed=one.seed)
        return Distillation(
            one.variant, self.method, self.settings, weight=one.weight, share=one.share, rounds=1, recipe=recipe
        )

    def teacher(self, one: Training) -> Training | None:
        if one.variant in WITHOUT_TEACHER:
            return None
        return replace(one, variant="sallm") if one.variant == "iterative" else Training("vanilla", one.seed)


def run(
    model: str,
    train: Source,
    validation: Source,
    test: Source,
    out: str | Path,
    *,
    size: Size = SIZES["quick"],
    others: Mapping[str, Source] | None = None,
    recipe: Recipe = Recipe(),  # noqa: B008
    method: str = "input_x_gradient",
    settings: Mapping[str, Any] | None = None,
    workers: int = 1,
    say: Callable[[str], None] = lambda _: None,
    callbacks: Callbacks = Callbacks(),  # noqa: B008
    controls: Sequence[Control] = ("shuffled", "uniform"),
    **options: Any,
) -> SallmResult:
    """Train all variants and controls with all seeds, in ``workers`` processes; if stopped, the same call resumes.

    ``shuffled`` is always one of the controls: a gain counts only against it.
    ``settings`` are those of the method. ``say`` is called with messages about progress. ``options`` are passed to
    :func:`salience.models.load_to_train`.
    """
    folder = Path(out)
    recipe = replace(recipe, epochs=size.epochs)
    tests = {"test": test, **(others or {})}
    experiment = Experiment(model, train, validation, tests, folder, recipe, method, settings or {}, options)
    learnt: tuple[Variant, ...] = (*TAUGHT, *dict.fromkeys(("shuffled", *controls)))
    grid, results = _run_all(size, learnt, partial(_run, experiment, workers, say, callbacks))
    chosen = _best(grid)
    say("comparing the predictions on the test texts")
    correct_by_variant = {name: _correct(variant, examples(test), options) for name, variant in results.items()}
    # The teachers of sallm, measured before its training, are the vanilla models.
    measures = {name: _spreads([r.epochs[-1].measures for r in variant]) for name, variant in results.items()}
    measures["vanilla"] |= _spreads([r.before for r in results["sallm"]])
    rows = _corrected(
        [_row(name, own, measures[name], correct_by_variant, list(others or {})) for name, own in results.items()]
    )
    result = SallmResult(model, method, size, recipe, chosen, grid, rows)
    with complete(folder / "result.json") as file:
        file.write(json.dumps(asdict(result), indent=1).encode())
    return result


def _run_all(
    size: Size,
    learnt: Sequence[Variant],
    run: Callable[[Sequence[Training]], Mapping[Training, DistillationResult]],
) -> tuple[list[dict[str, float]], dict[str, list[DistillationResult]]]:
    """The grid of λ and shares, and the results of every variant by seed with the best of them."""
    seeds = range(size.seeds)
    vanilla = [Training("vanilla", seed) for seed in seeds]
    candidates = [Training("sallm", 0, weight, share) for weight, share in product(size.weights, size.shares)]
    results = dict(run([*vanilla, *candidates]))
    grid = [{"weight": c.weight, "share": c.share, "validation": _validation(results[c])} for c in candidates]
    variants: dict[Variant, list[Training]] = {
        variant: [Training(variant, seed, **_best(grid)) for seed in seeds] for variant in learnt
    }
    results |= run([*chain(*variants.values())])
    return grid, {name: [results[one] for one in runs] for name, runs in {"vanilla": vanilla, **variants}.items()}


def _validation(result: DistillationResult) -> float:
    return result.epochs[-1].measures["accuracy"]


def _best(grid: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The λ and share with the highest validation accuracy."""
    best = max(grid, key=lambda one: one["validation"])
    return {"weight": best["weight"], "share": best["share"]}


def _run(
    experiment: Experiment,
    workers: int,
    say: Callable[[str], None],
    callbacks: Callbacks,
    trainings: Sequence[Training],
) -> dict[Training, DistillationResult]:
    """The result of each training, those of teachers first; each is stored in the folder of its training."""
    named = {str(one): one for one in trainings}
    shown = callbacks if workers == 1 else Callbacks()  # another process cannot show progress here
    jobs = {name: partial(_trained, experiment, one, shown) for name, one in named.items()}
    needs = {name: [str(teacher)] for name, one in named.items() if (teacher := experiment.teacher(one)) in trainings}
    results: dict[Training, DistillationResult] = {}
    for name, facts in run_jobs(jobs, workers=workers, needs=needs):
        results[named[name]] = facts["result"]
        say(f"{name}: validation accuracy {_validation(facts['result']):.3f}")
    return results


def _trained(experiment: Experiment, training: Training, callbacks: Callbacks) -> Facts:
    return {"result": experiment.run(training, callbacks)}


def _correct(
    results: Sequence[DistillationResult], tests: Sequence[Example], options: Mapping[str, Any]
) -> list[list[float]]:
    """For every seed and labelled test text, 100 if the student is correct and 0 otherwise."""
    labelled = [e for e in tests if e.label is not None]
    return [[100.0 * answer for answer in correct(load(result.student, **options), labelled)] for result in results]


def _spreads(measures: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """The spread of every measure over the seeds."""
    return {name: Spread(tuple(seed[name] for seed in measures)) for name in measures[0]}


def _row(
    name: str,
    results: Sequence[DistillationResult],
    measures: Mapping[str, Spread],
    correct: Mapping[str, Sequence[Sequence[float]]],
    others: Sequence[str],
) -> VariantRow:
    return VariantRow(
        name,
        Spread(tuple(100 * r.scores["test"] for r in results)),
        {other: Spread(tuple(100 * r.scores[other] for r in results)) for other in others},
        measures,
        None if name == "vanilla" else paired_difference(correct[name], correct["vanilla"]),
        paired_difference(correct[name], correct["shuffled"]) if name in TAUGHT else None,
    )


def _corrected(rows: Sequence[VariantRow]) -> list[VariantRow]:
    """The rows with the p-values of all their differences corrected."""
    columns = corrected([row.against_vanilla for row in rows], [row.against_shuffled for row in rows])
    return [
        replace(row, against_vanilla=vanilla, against_shuffled=shuffled)
        for row, vanilla, shuffled in zip(rows, *columns, strict=True)
    ]


def comparison_table(result: SallmResult) -> Table:
    """The table of accuracies, with the poster's numbers."""
    others = list(result.rows[0].others)
    differences = ["test − vanilla", "test − shuffled", "verdict"]
    head = ["variant", "validation", "test", *others, *differences, "poster: validation", "poster: test"]
    return head, [_cells(row, others) for row in result.rows]


def _cells(row: VariantRow, others: Sequence[str]) -> list[str]:
    return [
        row.variant,
        str(row.validation),
        str(row.test),
        *(str(row.others[other]) for other in others),
        *("" if d is None else _tested(d) for d in (row.against_vanilla, row.against_shuffled)),
        row.verdict,
        *PUBLISHED.get(row.variant, ("", "")),
    ]


def _tested(difference: Difference) -> str:
    return str(difference) if isnan(difference.p) else f"{difference} (p = {difference.p:.2f})"


def looked(result: SallmResult) -> Table:
    """The table of attention measures."""
    names = [name for name in result.rows[1].measures if name != "accuracy"]
    head = ["variant", *(name.replace("_", " ") for name in names)]
    measured = [row for row in result.rows if set(names) <= set(row.measures)]
    return head, [[row.variant, *(f"{row.measures[name]:.3f}" for name in names)] for row in measured]


def markdown(table: Table) -> str:
    head, rows = table
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))
