"""Understanding Attention Training via Output Relevance: the claims of the slides, each tested here.

Papers: Snell et al. 2020 (slides and preprint); Snell et al. 2021, arXiv:2103.07601
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any, Literal

from scipy.stats import fisher_exact

from salience.audits.auditor import Callbacks, run_test
from salience.audits.deceptive_twin import deceptive_twin
from salience.audits.finding import Finding, Measure
from salience.audits.study import Study
from salience.core.files import claim, fingerprint, locked
from salience.core.stats import Estimate
from salience.data.copying import COPY_KINDS
from salience.data.examples import encode_examples, sampled
from salience.data.pairs import Pair
from salience.dynamics.classifiers import RECIPE, SHAPE, Classifiers
from salience.dynamics.comparison import Comparison, compare
from salience.dynamics.copying import SEEDS, CopyRecipe, CopyRun, copying
from salience.dynamics.recovery import recovery
from salience.dynamics.separation import Order
from salience.papers.debate import Check, Data, below, keeps_accuracy
from salience.training.loop import Recipe, TrainingProgress
from salience.training.twins import Twins
from salience.views.copying import kind_name

NAME = "output_relevance"
TITLE = "Understanding Attention Training via Output Relevance"
SOURCE = "Snell et al. 2020 (slides); Snell et al. 2021, arXiv:2103.07601"

CLAIMS = (
    "attention correlates with influence under standard training",
    "uniform attention keeps accuracy",
    "deceptive attention keeps accuracy and anti-correlates with influence",
    "relevance and attention start uniform",
    "relevance separates keywords first",
    "r′ of uniform training correlates with standard attention",
    "r′ of uniform training correlates with influence",
    "co-occurrence recovers the dictionary",
    "without co-occurrence, attention fails to learn",
)
"""What the slides say, in their order."""

Verdict = Literal["reproduced", "not reproduced", "undecided", "not comparable"]
"""Undecided: an interval does not tell. Not comparable: what was measured here is not what the slides speak of."""
TIMES = 3.0
"""An agreement counts if it is at least so many times chance."""
NEARLY_UNIFORM, SMALL = 0.98, 0.2
"""Attention starts uniform if its entropy is at least this share of the highest; relevance if it varies over tokens by
at most this share of what it does at the end."""


# ------------------------------------------------------------------------------------------------------ results


@dataclass(frozen=True, slots=True)
class Line:
    """One number of a table, on one data set."""

    data: str
    quantity: str
    ours: Estimate | float
    beside: Mapping[str, float | Estimate]
    """What stands beside it, such as chance."""
    said: str = ""
    """What the slides say of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a claim, counted from 1, is reproduced on a data set."""

    claim: int
    data: str
    verdict: Verdict
    figures: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report."""

    title: str
    lines: tuple[Line, ...]
    answers: tuple[Answer, ...]
    notes: tuple[str, ...]
    orders: Mapping[str, Order] = field(default_factory=dict[str, Order])
    """Which comes first, relevance or attention, by data set."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The claims of the slides, and what was found."""

    sections: tuple[Section, ...]
    settings: Mapping[str, Any]

    @property
    def answers(self) -> list[Answer]:
        return [answer for section in self.sections for answer in section.answers]

    def untested(self) -> list[int]:
        """The claims that no section tests."""
        return [n for n in range(1, len(CLAIMS) + 1) if n not in {answer.claim for answer in self.answers}]


# ------------------------------------------------------------------------------------------------------ sizes


@dataclass(frozen=True, slots=True)
class Size:
    """How much of the protocol is run."""

    train: int | None
    """Texts to train on; None for all."""
    followed: int
    """Test texts that are followed through training."""
    influenced: int
    """Of these, texts whose influence is measured, with a pass for every token."""
    seeds: int
    checkpoints: int
    recipe: Recipe


SIZES = {
    "quick": Size(2000, 100, 50, 2, 12, replace(RECIPE, epochs=3)),
    "full": Size(None, 500, 200, 3, 24, replace(RECIPE, epochs=8)),
}


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What a section works with."""

    sets: Mapping[str, Data]
    folder: Path
    size: Size
    shape: Mapping[str, Any]
    """Fields of the classifiers' configuration that differ from the authors'."""
    device: str | None
    callbacks: Callbacks
    copies: int
    """Networks of each kind that learn to copy; 0 for none."""
    recipe: CopyRecipe


# ------------------------------------------------------------------------------------------------------ classification


def classification(setting: Setting) -> Section:
    """Claims 1 to 7, on every data set."""
    lines: list[Line] = []
    answers: list[Answer] = []
    orders: dict[str, Order] = {}
    for name, data in setting.sets.items():
        result, deceived = _trained(setting, name, data)
        lines += _lines(name, result)
        answers += _answers(name, result, deceived)
        orders[name] = result.order
    return Section("Text classification", tuple(lines), tuple(answers), NOTES, orders)


def _trained(setting: Setting, name: str, data: Data) -> tuple[Comparison, Finding]:
    size, folder = setting.size, setting.folder / name
    train = sampled(data.train, size.train or len(data.train))
    followed = sampled(data.test, size.followed)
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "data set": fingerprint(list(train), list(followed)),
        "size": fingerprint(size, sorted(setting.shape.items())),
    }
    claim(folder / "data.json", facts, what="other results")
    step = setting.callbacks.step

    def report(what: str, progress: TrainingProgress) -> None:
        if step is not None:
            step(f"{name}: {what}", progress)

    classifiers = Classifiers.new(
        folder,
        train,
        followed,
        shape={**SHAPE, **setting.shape},
        device=setting.device,
        recipe=size.recipe,
        checkpoints=size.checkpoints,
        report=report,
    )
    result = compare(classifiers, seeds=size.seeds, influenced=size.influenced)
    model, _ = classifiers("standard")
    few = sampled(followed, size.influenced)
    twins = Twins(folder / "deceptive", train, size.recipe, report)
    study = Study(model, few, encode_examples(model, few), twins=twins)
    shown = Callbacks(lambda what: setting.callbacks.test(f"{name}: {what}"))
    return result, run_test(study, deceptive_twin, {}, folder / "deceptive", shown)


def _lines(name: str, result: Comparison) -> list[Line]:
    rows = [
        Line(
            name,
            f"A({row.final.of})",
            row.final.agreement,
            {"chance": row.final.chance.mean, "τ": row.final.tau, "peak": row.peak, "ξ": row.xi},
            SAID.get(row.final.of, ""),
        )
        for row in result.rows
    ]
    accuracies = [Line(name, f"accuracy, {who}", e, {}) for who, e in result.accuracies.items()]
    course = result.order
    steps = [
        Line(name, f"{which} half-way by {by}", half, {})
        for which, one in (("r", course.relevance), ("a", course.attention))
        for by, half in (("ranks", one.half), ("size", one.half_size))
    ]
    return [*rows, *accuracies, *steps]


SAID = {
    "a, Δ": "strongly correlates",
    "a, r′": "correlates",
    "Δ, r′": "correlates",
}
"""What the slides say of an agreement. They give no numbers."""


def _answers(name: str, result: Comparison, deceived: Finding) -> list[Answer]:
    correct = {who: Measure.of("accuracy", marks, "share") for who, marks in result.correct.items()}
    tau, own = deceived.measures[:2]
    accuracies = [deceived.measure(f"accuracy, {who}") for who in ("twin", "model")]
    return [
        _answer(1, name, [_agrees(result, "a, Δ"), _positive("τ(a, Δ)", result.row("a, Δ").final.tau)]),
        _answer(2, name, [keeps_accuracy("uniform attention", correct["uniform"], correct["standard"])]),
        _answer(
            3,
            name,
            [
                keeps_accuracy("the deceptive twin", *accuracies),
                replace(below(tau, 0.0), figures=f"{tau.name} {tau.estimate}, of the model {own.estimate}"),
            ],
        ),
        _answer(4, name, [_uniform(result), _small(result)]),
        _answer(5, name, [_first(result)]),
        _answer(6, name, [_agrees(result, "a, r′")]),
        _answer(7, name, [_agrees(result, "Δ, r′")]),
    ]


def _answer(number: int, data: str, checks: Sequence[Check]) -> Answer:
    """A claim is reproduced if all its checks hold, and not if one fails."""
    results = {check.holds for check in checks}
    verdict: Verdict = "not reproduced" if False in results else "undecided" if None in results else "reproduced"
    return Answer(number, data, verdict, "; ".join(check.figures for check in checks))


def _agrees(result: Comparison, of: str) -> Check:
    """The agreement is above chance, and at least three times as high."""
    row = result.row(of).final
    figures = f"A({of}) = {row.agreement}, {row.times:.1f} × chance ({row.chance.mean:.3f})"
    if row.agreement.low >= TIMES * row.chance.mean:
        return Check(True, figures)
    return Check(False if row.agreement.high < TIMES * row.chance.mean else None, figures)


def _positive(what: str, e: Estimate) -> Check:
    return Check(True if e.low > 0 else False if e.high < 0 else None, f"{what} = {e}")


def _uniform(result: Comparison) -> Check:
    e = result.first_entropy
    holds = True if e.low >= NEARLY_UNIFORM else False if e.high < NEARLY_UNIFORM else None
    return Check(holds, f"entropy of attention, as a share of that of uniform attention {e}")


def _small(result: Comparison) -> Check:
    e = result.first_spread
    holds = True if e.high <= SMALL else False if e.low > SMALL else None
    return Check(holds, f"spread of relevance over tokens, as a share of that at the end {e}")


def _first(result: Comparison) -> Check:
    order = result.order
    figures = (
        f"lag of attention in steps: {_steps(order.lag)} by ranks, {_steps(order.lag_size)} by size; relevance is "
        f"above chance {_since(order.relevance.first)}, attention {_since(order.attention.first)}"
    )
    return Check(order.relevance_first, figures)


def _since(step: int | None) -> str:
    return "at no step" if step is None else f"from step {step}"


def _steps(e: Estimate) -> str:
    if isnan(e.low):
        return "undetermined" if isnan(e.mean) else f"{e.mean:.0f}"
    return f"{e.mean:.0f} [{e.low:.0f}, {e.high:.0f}]"


NOTES = (
    "A(u, v) is the share of texts in which the highest token of u is among the highest 5 % of v; chance is its mean "
    "over all orders of v. An agreement counts as reproduced if its interval lies above 3 times chance.",
    "a is attention, Δ influence by leaving one word out, ∇ its gradient form, r′ relevance under uniform attention. "
    "embedding and counts are the co-occurrence proxies: a mean of embeddings, and a logistic regression on counts. r "
    "and a are half-way at the step at which they separate keywords half as well as at the end.",
    "peak is the highest agreement over the recorded steps of the second training, which the slides' code reports; "
    "it is chosen on the same texts, so it is too high. ξ is the accuracy of other seeds when their attention agrees "
    "with a as much.",
    "The slides give no numbers for these agreements, and none are printed as theirs.",
    "The authors train for 4000 steps of Adam at a constant rate; here the rate falls linearly to 0, for fewer steps. "
    "Texts have no tokens for their beginning and end. Words that occur less than 3 times are unknown.",
    "Influence is that on the log-probability of the true label. With two labels, it ranks tokens as the logit does.",
)


# ------------------------------------------------------------------------------------------------------ dictionary


@dataclass(frozen=True, slots=True)
class AlignedPairs:
    """Pairs to count co-occurrences in, and pairs with word alignments."""

    train: Sequence[Pair]
    test: Sequence[Pair]


def looked_up(pairs: AlignedPairs) -> Section:
    """Claim 8: is the word that co-occurrence associates with a word the one that it is aligned with?"""
    result = recovery(pairs.train, pairs.test)
    measures = {name: Measure.of(name, shares, "share") for name, shares in result.found.items()}
    association, chance, place = (measures[name].estimate for name in ("association", "chance", "place"))
    bound = TIMES * chance.mean
    figures = f"{association} of the words are found, {chance.mean:.3f} by chance, {place.mean:.3f} by their place"
    often = Check(True if association.low >= bound else False if association.high < bound else None, figures)
    lines = [Line("dictionary", f"words found by {name}", m.estimate, {}) for name, m in measures.items()]
    unknown = Line("dictionary", "aligned words that no training pair holds", result.unknown, {})
    answer = _answer(8, "dictionary", [often])
    return Section("Dictionary", (*lines, unknown), (answer,), DICTIONARY_NOTES)


DICTIONARY_NOTES = (
    "A word of a test answer is looked up among the words of its source: by association n(o, i) / (n(o) n(i)) and by "
    "counts n(o, i) of the training pairs, by its place in the text, and at random. It is found if the highest is a "
    "word that it is aligned with; shares are means over pairs.",
    "Claim 8 counts as reproduced if association finds a word at least 3 times as often as chance. The place knows no "
    "words, only that both languages order them alike.",
)


# ------------------------------------------------------------------------------------------------------ copying


def copied(setting: Setting) -> Section:
    """Claim 9, on sequences: permutations have no co-occurrence, other draws do."""
    shown, seeds = setting.callbacks.test("copying"), range(setting.copies)
    runs: list[CopyRun] = []

    def report(run: CopyRun) -> None:
        runs.append(run)
        if shown is not None:
            shown(len(runs), len(seeds) * len(COPY_KINDS))

    result = copying(seeds=seeds, recipe=setting.recipe, folder=setting.folder / "copying", report=report)
    failed = {kind: result.failures(kind) for kind in result.kinds}
    names = {kind: f"runs that fail, {kind_name(kind, setting.recipe.length)}" for kind in failed}
    lines = (Line("copying", names[kind], e, {}, SAID_OF_COPYING.get(kind, "")) for kind, e in failed.items())
    return Section("Copying", tuple(lines), (_fails(failed["permutation"], failed["iid"]),), COPYING_NOTES)


SAID_OF_COPYING = {"permutation": "about half", "iid": "none"}
"""What the slides say of the runs that fail."""

COPYING_NOTES = (
    "A run fails if it copies less than 95 % of the symbols after its last step. Failed runs learn to copy later, "
    "without attending to the symbol that they copy.",
    "Claim 9 counts as reproduced if runs on permutations fail more often than those on independent draws (Fisher's "
    "exact test, p < 0.05), and as not reproduced if they fail in less than 20 % of all cases.",
)
RARE = 0.2
"""The share of failures below which attention is said to be learnt."""


def _fails(permutations: Estimate, draws: Estimate) -> Answer:
    counts = [(round(e.mean * e.n), e.n) for e in (permutations, draws)]
    tested: Any = fisher_exact([[k, n - k] for k, n in counts], alternative="greater")
    p = float(tested.pvalue)
    few = permutations.high < RARE
    verdict: Verdict = "reproduced" if p < 0.05 else "not reproduced" if few else "undecided"
    (a, n), (b, m) = counts
    return Answer(9, "copying", verdict, f"{a} of {n} runs on permutations fail, {b} of {m} on draws; p = {p:.3f}")


# ------------------------------------------------------------------------------------------------------ all sections


def run(
    sets: Mapping[str, Data],
    out: str | Path,
    *,
    size: str = "quick",
    limit: int | None = None,
    epochs: int | None = None,
    shape: Mapping[str, Any] | None = None,
    device: str | None = None,
    copies: bool = False,
    aligned: AlignedPairs | None = None,
    recipe: CopyRecipe = CopyRecipe(),  # noqa: B008
    callbacks: Callbacks = Callbacks(),  # noqa: B008
) -> Reproduction:
    """Test the claims; classifiers, records and findings are kept in ``out``, and the same call resumes.

    ``limit`` and ``epochs`` make a size smaller, and ``shape`` changes the classifiers. With ``copies``, networks also
    learn to copy sequences by ``recipe``, which answers claim 9. Words of ``aligned`` pairs are looked up by their
    co-occurrence, which answers claim 8.
    """
    chosen = SIZES[size]
    if limit is not None:
        chosen = replace(
            chosen,
            train=min(limit, chosen.train or limit),
            followed=min(limit, chosen.followed),
            influenced=min(limit, chosen.influenced),
        )
    if epochs is not None:
        chosen = replace(chosen, recipe=replace(chosen.recipe, epochs=epochs))
    folder = Path(out)
    with locked(folder, mark="paper.json"):
        claim(folder / "paper.json", {"paper": NAME}, what="other results")
        runs = SEEDS[size] if copies else 0
        setting = Setting(sets, folder, chosen, shape or {}, device, callbacks, runs, recipe)
        sections = (
            classification(setting),
            *([looked_up(aligned)] if aligned is not None else []),
            *([copied(setting)] if runs else []),
        )
    return Reproduction(sections, {"size": size, **asdict(chosen), **(shape or {}), "networks that copy": runs})
