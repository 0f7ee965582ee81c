"""SalLM: saliency-guided language models, four variants on SST-5.

The poster trains BERT-base as a teacher, binarises its gradient saliency, and trains again with the attention loss. λ
and the share of marked tokens are not published: both are chosen here on the validation set, never on the test set.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from salience.data import Source
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


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run."""

    seeds: int
    epochs: int
    weights: tuple[float, ...]
    shares: tuple[float, ...]
    rounds: int


SIZES = {
    "quick": Size(seeds=2, epochs=1, weights=(1.0,), shares=(0.2,), rounds=2),
    "full": Size(seeds=5, epochs=2, weights=(0.1, 1.0), shares=(0.1, 0.3), rounds=2),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One variant over all seeds, in per cent."""

    variant: str
    validation: Spread
    test: Spread
    others: Mapping[str, Spread]
    """Test accuracy on other data."""
    mass: Spread | None
    """Attention on the explained tokens."""
    against_vanilla: Difference | None
    """Of correct test answers, in per cent, over all texts and seeds."""


@dataclass(frozen=True, slots=True)
class Result:
    """The table, and what it was made with."""

    model: str
    size: Size
    chosen: Mapping[str, float]
    grid: Sequence[Mapping[str, float]]
    rows: Sequence[Row]


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
    say: Callable[[str], None] = lambda _: None,
    telling: Telling = Telling(),  # noqa: B008
) -> Result:
    """All variants and seeds; stopped, it goes on where it was. Each course lies in a folder of its own."""
    folder, tests = Path(out), {"test": test, **(others or {})}
    recipe = replace(recipe, epochs=size.epochs)

    def taught(variant: Variant, seed: int, weight: float = 1.0, share: float = 0.2) -> Taught:
        course = Course(
            variant=variant,
            method=method,
            weight=weight,
            share=share,
            rounds=size.rounds,
            recipe=replace(recipe, seed=seed),
        )
        name = variant if variant == "vanilla" else f"{variant}-{weight:g}-{share:g}"
        say(f"{name}, seed {seed}")
        teacher = None if variant == "vanilla" else folder / f"vanilla-seed-{seed}" / "student"
        return teach(
            model,
            train,
            folder / f"{name}-seed-{seed}",
            course,
            validation=validation,
            tests=tests,
            teacher=teacher,
            shelf=folder / f"explanations-seed-{seed}",
            telling=telling,
        )

    vanilla = [taught("vanilla", seed) for seed in range(size.seeds)]
    grid = [
        {"weight": w, "share": k, "validation": _validated(taught("sallm", 0, w, k))}
        for w, k in product(size.weights, size.shares)
    ]
    best = max(grid, key=lambda one: one["validation"])
    chosen = {"weight": best["weight"], "share": best["share"]}
    found: dict[str, list[Taught]] = {"vanilla": vanilla}
    for variant in ("sallm", "fine_tuned", "iterative"):
        found[variant] = [taught(variant, seed, **chosen) for seed in range(size.seeds)]
    right = {name: _right(all_of, examples(test)) for name, all_of in found.items()}
    rows = [_row(name, all_of, right, list(others or {})) for name, all_of in found.items()]
    result = Result(model, size, chosen, grid, rows)
    with complete(folder / "result.json") as file:
        file.write(json.dumps(asdict(result), indent=1).encode())
    return result


def _validated(found: Taught) -> float:
    return found.epochs[-1].measures["accuracy"]


def _right(found: Sequence[Taught], tests: Sequence[Example]) -> list[float]:
    """For every seed and test text, 100 if the student is right."""
    answers: list[float] = []
    for taught in found:
        student = load(taught.student)
        answers += [100.0 * answer for answer in correct(student, tests)]
    return answers


def correct(model: Model, given: Sequence[Example]) -> list[bool]:
    """Whether each text's label is predicted."""
    found: dict[str, bool] = {}
    for some, encoded in packed(model, given):
        hits = forward(model, model.batch(encoded)).logits.argmax(1) == labels_of(model, some)
        found |= {e.id: bool(hit) for e, hit in zip(some, hits, strict=True)}
    return [found[e.id] for e in given]


def _row(name: str, found: Sequence[Taught], right: Mapping[str, Sequence[float]], others: Sequence[str]) -> Row:
    masses = [t.epochs[-1].measures.get("attention_mass") for t in found]
    return Row(
        name,
        Spread(tuple(100 * _validated(t) for t in found)),
        Spread(tuple(100 * t.scores["test"] for t in found)),
        {other: Spread(tuple(100 * t.scores[other] for t in found)) for other in others},
        Spread(tuple(100 * m for m in masses if m is not None)) if None not in masses else None,
        None if name == "vanilla" else paired_bootstrap(right[name], right["vanilla"]),
    )


def markdown(result: Result) -> str:
    """The poster's table beside ours."""
    others = list(result.rows[0].others)
    head = ["variant", "validation", "test", *others, "test − vanilla", "mass", "poster: validation", "poster: test"]
    lines = [head, ["---"] * len(head), *(_cells(row, others) for row in result.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(row: Row, others: Sequence[str]) -> list[str]:
    return [
        row.variant,
        str(row.validation),
        str(row.test),
        *(str(row.others[other]) for other in others),
        "" if row.against_vanilla is None else f"{row.against_vanilla} (p = {row.against_vanilla.p:.2f})",
        "" if row.mass is None else f"{row.mass.mean:.0f} %",
        *PUBLISHED[row.variant],
    ]
