"""SalLM: saliency-guided language models, four variants on SST-5.

The poster trains BERT-base as a teacher, binarises its gradient saliency, and trains again with the attention loss. λ
and the share of marked tokens are not published: both are chosen here on the validation set, never on the test set.
"""

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from salience.data import Source
from salience.engines.local import end_with_parent
from salience.guards import packed
from salience.lessons import Example, examples
from salience.models import load
from salience.passes import forward
from salience.runs import complete
from salience.stats import Difference, Spread, paired_bootstrap
from salience.teaching import Course, Taught, Telling, Variant, teach
from salience.train import Recipe, labels_of
from salience.types import Model

PUBLISHED = {
    "vanilla": ("51.07 ± 0.52", "53.83 ± 0.42"),
    "sallm": ("51.77 ± 0.76", "54.22 ± 0.19"),
    "fine_tuned": ("51.13 ± 0.92", "53.27 ± 0.21"),
    "iterative": ("51.53 ± 0.41", "53.45 ± 1.05"),
}
"""Validation and test accuracy in the poster: BERT-base, SST-5, 3 seeds, mean ± standard deviation."""

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The heading and the rows."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run."""

    seeds: int
    epochs: int
    weights: tuple[float, ...]
    shares: tuple[float, ...]


SIZES = {
    "quick": Size(seeds=2, epochs=1, weights=(1.0,), shares=(0.2,)),
    "full": Size(seeds=5, epochs=2, weights=(0.1, 1.0), shares=(0.1, 0.3)),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One variant over all seeds."""

    variant: str
    test: Spread
    """Accuracy in per cent, as all of them."""
    others: Mapping[str, Spread]
    """Accuracy on other data."""
    measures: Mapping[str, Spread]
    """What the guards measured on the validation texts; those of attention against the first teacher's explanations
    for all but ``iterative``, whose teacher is a student of the first."""
    against_vanilla: Difference | None
    """Of correct test answers, in per cent."""

    @property
    def validation(self) -> Spread:
        return Spread(tuple(100 * value for value in self.measures["accuracy"].values))


@dataclass(frozen=True, slots=True)
class Result:
    """The table, and what it was made with."""

    model: str
    method: str
    size: Size
    recipe: Recipe
    chosen: Mapping[str, float]
    grid: Sequence[Mapping[str, float]]
    """Validation accuracy of sallm with seed 0, for each λ and share."""
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Asked:
    """One training."""

    variant: Variant
    seed: int
    weight: float = 1.0
    share: float = 0.2

    def __str__(self) -> str:
        settings = "" if self.variant == "vanilla" else f"-{self.weight:g}-{self.share:g}"
        return f"{self.variant}{settings}-seed-{self.seed}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What all trainings share. Each lies in a folder of its own, and is made once."""

    model: str
    train: Source
    validation: Source
    tests: Mapping[str, Source]
    folder: Path
    recipe: Recipe
    method: str
    options: Mapping[str, Any]

    def taught(self, asked: Asked, telling: Telling = Telling()) -> Taught:  # noqa: B008
        teacher = self._teacher(asked)
        return teach(
            self.model,
            self.train,
            self.folder / str(asked),
            self._course(asked),
            validation=self.validation,
            tests=self.tests,
            teacher=None if teacher is None else self.folder / str(teacher) / "student",
            shelf=None if teacher is None else self.folder / f"explanations-{teacher}",
            telling=telling,
            **self.options,
        )

    def _course(self, asked: Asked) -> Course:
        # Three models: the teacher, its student, and the student's student. The second is what sallm has made.
        recipe = replace(self.recipe, seed=asked.seed)
        return Course(asked.variant, self.method, weight=asked.weight, share=asked.share, rounds=1, recipe=recipe)

    def _teacher(self, asked: Asked) -> Asked | None:
        if asked.variant == "vanilla":
            return None
        return replace(asked, variant="sallm") if asked.variant == "iterative" else Asked("vanilla", asked.seed)


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
    workers: int = 1,
    say: Callable[[str], None] = lambda _: None,
    telling: Telling = Telling(),  # noqa: B008
    **options: Any,
) -> Result:
    """All variants and seeds; stopped, it goes on where it was. ``workers`` processes train at a time.

    ``options`` are those of :func:`salience.models.load_to_train`.
    """
    folder = Path(out)
    recipe = replace(recipe, epochs=size.epochs)
    plan = Plan(model, train, validation, {"test": test, **(others or {})}, folder, recipe, method, options)
    with _pool(workers) as pool:
        grid, found = _trained(size, lambda asked: dict(_made(plan, asked, pool, say, telling)))
    chosen = _best(grid)
    say("comparing the answers to the test texts")
    right = {name: _right(all_of, examples(test)) for name, all_of in found.items()}
    # The guards of sallm measured its teachers, which are the vanilla models, before.
    measures = {name: _measured([t.epochs[-1].measures for t in all_of]) for name, all_of in found.items()}
    measures["vanilla"] |= _measured([t.before for t in found["sallm"]])
    rows = [_row(name, all_of, measures[name], right, list(others or {})) for name, all_of in found.items()]
    result = Result(model, method, size, recipe, chosen, grid, rows)
    with complete(folder / "result.json") as file:
        file.write(json.dumps(asdict(result), indent=1).encode())
    return result


def _trained(
    size: Size, made: Callable[[Sequence[Asked]], Mapping[Asked, Taught]]
) -> tuple[list[dict[str, float]], dict[str, list[Taught]]]:
    """The grid, and the trainings of every variant by seed; those that teach before those that they teach."""
    seeds = range(size.seeds)
    vanilla = [Asked("vanilla", seed) for seed in seeds]
    found = dict(made(vanilla))
    tried = [Asked("sallm", 0, weight, share) for weight, share in product(size.weights, size.shares)]
    found |= made(tried)
    grid = [{"weight": a.weight, "share": a.share, "validation": _validated(found[a])} for a in tried]
    variants: dict[Variant, list[Asked]] = {
        variant: [Asked(variant, seed, **_best(grid)) for seed in seeds]
        for variant in ("sallm", "fine_tuned", "iterative")
    }
    found |= made([*variants["sallm"], *variants["fine_tuned"]])
    found |= made(variants["iterative"])
    return grid, {name: [found[a] for a in asked] for name, asked in {"vanilla": vanilla, **variants}.items()}


def _validated(found: Taught) -> float:
    return found.epochs[-1].measures["accuracy"]


def _best(grid: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """λ and share with the highest validation accuracy."""
    best = max(grid, key=lambda one: one["validation"])
    return {"weight": best["weight"], "share": best["share"]}


def _made(
    plan: Plan, asked: Sequence[Asked], pool: Executor | None, say: Callable[[str], None], telling: Telling
) -> Iterator[tuple[Asked, Taught]]:
    """Each training, in this process or in several."""
    if pool is None:
        for one in asked:
            say(str(one))
            yield one, plan.taught(one, telling)
        return
    futures = {pool.submit(plan.taught, one): one for one in asked}
    for future in as_completed(futures):
        taught = future.result()
        say(f"{futures[future]}: validation accuracy {_validated(taught):.3f}")
        yield futures[future], taught


@contextmanager
def _pool(workers: int) -> Generator[Executor | None]:
    """Processes that share the threads; none for a single one."""
    if workers == 1:
        yield None
        return
    threads = max(1, torch.get_num_threads() // workers)
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, (threads,)) as pool:
        yield pool


def _begin(threads: int) -> None:
    """The start of a process that trains."""
    end_with_parent()
    torch.set_num_threads(threads)


def _right(found: Sequence[Taught], tests: Sequence[Example]) -> list[list[float]]:
    """For every seed and test text, 100 if the student is right."""
    return [[100.0 * answer for answer in correct(load(taught.student), tests)] for taught in found]


def correct(model: Model, given: Sequence[Example]) -> list[bool]:
    """Whether each text's label is predicted."""
    found: dict[str, bool] = {}
    for some, encoded in packed(model, given):
        hits = forward(model, model.batch(encoded)).logits.argmax(1) == labels_of(model, some)
        found |= {e.id: bool(hit) for e, hit in zip(some, hits, strict=True)}
    return [found[e.id] for e in given]


def _measured(each: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Every measure over the seeds."""
    return {name: Spread(tuple(one[name] for one in each)) for name in each[0]}


def _row(
    name: str,
    found: Sequence[Taught],
    measures: Mapping[str, Spread],
    right: Mapping[str, Sequence[Sequence[float]]],
    others: Sequence[str],
) -> Row:
    return Row(
        name,
        Spread(tuple(100 * t.scores["test"] for t in found)),
        {other: Spread(tuple(100 * t.scores[other] for t in found)) for other in others},
        measures,
        None if name == "vanilla" else paired_bootstrap(np.array(right[name]), np.array(right["vanilla"])),
    )


def compared(result: Result) -> Table:
    """The poster's table beside ours."""
    others = list(result.rows[0].others)
    head = ["variant", "validation", "test", *others, "test − vanilla", "poster: validation", "poster: test"]
    return head, [_cells(row, others) for row in result.rows]


def _cells(row: Row, others: Sequence[str]) -> list[str]:
    return [
        row.variant,
        str(row.validation),
        str(row.test),
        *(str(row.others[other]) for other in others),
        "" if row.against_vanilla is None else f"{row.against_vanilla} (p = {row.against_vanilla.p:.2f})",
        *PUBLISHED[row.variant],
    ]


def looked(result: Result) -> Table:
    """What became of attention."""
    names = [name for name in result.rows[1].measures if name != "accuracy"]
    head = ["variant", *(name.replace("_", " ") for name in names)]
    return head, [[row.variant, *(f"{row.measures[name]:.3f}" for name in names)] for row in result.rows]


def markdown(table: Table) -> str:
    head, rows = table
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))
