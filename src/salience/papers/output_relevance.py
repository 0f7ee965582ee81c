"""Understanding Attention Training via Output Relevance: the claims of the slides, each tested here.

Papers: Snell et al. 2020 (slides and preprint); Snell et al. 2021, arXiv:2103.07601
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scipy.stats import fisher_exact

from salience.audits.auditor import Callbacks
from salience.audits.deceptive_twin import deceiving
from salience.audits.finding import Measure
from salience.audits.study import Study
from salience.core.files import claim, fingerprint, locked
from salience.core.processes import cores
from salience.core.stats import Estimate, estimate
from salience.data.copying import COPY_KINDS, CopyKind
from salience.data.examples import encode_examples, sampled
from salience.data.pairs import Pair
from salience.dynamics.agreement import TIMES, Agreement
from salience.dynamics.classifiers import RECIPE, SHAPE, Classifiers
from salience.dynamics.comparison import Comparison, compare
from salience.dynamics.copying import SEEDS, CopyRecipe, CopyRun, copying
from salience.dynamics.influence import leave_one_out
from salience.dynamics.recording import snapshots
from salience.dynamics.recovery import recovery
from salience.dynamics.separation import Order
from salience.papers.debate import Data, decided, fewer
from salience.papers.relevance_claims import (
    NOTES,
    Answer,
    Deceptive,
    Line,
    Reproduction,
    Section,
    Verdict,
    answer,
    answers_of,
    lines_of,
)
from salience.training.loop import Recipe, TrainingProgress
from salience.training.twins import Twins
from salience.views.copying import kind_name

NAME = "output_relevance"
TITLE = "Understanding Attention Training via Output Relevance"
SOURCE = "Snell et al. 2020 (slides); Snell et al. 2021, arXiv:2103.07601"

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

    def limited(self, train: int | None, tested: int | None) -> "Size":
        """At most these numbers of texts."""
        followed, influenced = (n if tested is None else min(n, tested) for n in (self.followed, self.influenced))
        return replace(self, train=fewer(train, self.train), followed=followed, influenced=influenced)


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
        result, deceptive = _trained(setting, name, data)
        lines += lines_of(name, result)
        answers += answers_of(name, result, deceptive)
        orders[name] = result.order
    return Section("Text classification", tuple(lines), tuple(answers), NOTES, orders)


def _trained(setting: Setting, name: str, data: Data) -> tuple[Comparison, Deceptive]:
    """Compare classifiers, and measure the deceptive twin of the first one."""
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
    return result, _deceptive(study)


def _deceptive(study: Study) -> Deceptive:
    twin = deceiving(study)
    own, other = (Measure.of("accuracy", study.correct(one), "share") for one in (twin, study.model))
    attention = [one.attention for one in snapshots(twin, study.encoded)]
    influence = leave_one_out(twin, study.examples)
    return Deceptive(own, other, Agreement.between("a, Δ of the deceptive twin", attention, influence))


# ------------------------------------------------------------------------------------------------------ dictionary


@dataclass(frozen=True, slots=True)
class AlignedPairs:
    """Pairs to count co-occurrences in, and pairs with word alignments."""

    train: Sequence[Pair]
    test: Sequence[Pair]
    by_people: bool = False
    """Whether people aligned the test pairs. Automatic alignments are made of co-occurrence themselves."""


def looked_up(pairs: AlignedPairs) -> Section:
    """Claim 8: is the word that co-occurrence associates with a word the one that it is aligned with?"""
    result = recovery(pairs.train, pairs.test)
    measures = {name: Measure.of(name, shares, "share") for name, shares in result.shares.items()}
    lead = estimate(result.shares["association"] - TIMES * result.shares["chance"], (-TIMES, 1))
    association, chance, place = (measures[name].estimate for name in ("association", "chance", "place"))
    figures = f"{association} of the words are found, {chance.mean:.3f} by chance, {place.mean:.3f} by their place"
    lines = [Line("dictionary", f"words found by {name}", m.estimate, {}) for name, m in measures.items()]
    unknown = Line("dictionary", "aligned words that no training pair holds", result.unknown, {})
    tested = answer(8, "dictionary", [decided(lead, 0, figures)])
    if not pairs.by_people:
        tested = replace(tested, verdict="not comparable", figures=f"{figures}; the alignments are automatic")
    return Section("Dictionary", (*lines, unknown), (tested,), DICTIONARY_NOTES)


DICTIONARY_NOTES = (
    "A word of a test answer is looked up among the words of its source: by association n(o, i) / (n(o) n(i)) and by "
    "counts n(o, i) of the training pairs, by its place in the text, and at random. It is found if the highest is a "
    "word that it is aligned with; shares are means over pairs.",
    "Claim 8 counts as reproduced if association finds a word at least 3 times as often as chance, compared pair by "
    "pair. The place knows no words, only that both languages order them alike.",
    "Automatic alignments, such as those of fast_align, are found by co-occurrence, so that agreement with them says "
    "little: the claim is judged only by alignments that people made (--gold).",
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

    place = setting.folder / "copying"
    result = copying(seeds=seeds, recipe=setting.recipe, folder=place, workers=cores(), report=report)
    names: list[tuple[CopyKind, str]] = [(k, kind_name(k, setting.recipe.length)) for k in result.kinds]
    lines = [
        Line("copying", f"runs that fail, {name}", result.failures(kind), {}, SLIDES_ON_COPYING.get(kind, ""))
        for kind, name in names
    ]
    lines += [
        Line("copying", f"runs with attention elsewhere, {name}", result.unaligned(kind), {}) for kind, name in names
    ]
    tested = _fails(result.unaligned("permutation"), result.unaligned("iid"))
    return Section("Copying", tuple(lines), (tested,), COPYING_NOTES)


SLIDES_ON_COPYING = {"permutation": "about half", "iid": "none"}
"""What the slides say of the runs that fail."""

COPYING_NOTES = (
    "A run fails if it copies less than 95 % of the symbols after its last step. Failed runs learn to copy later, "
    "without attending to the symbol that they copy.",
    "Attention is learnt if most of it is on the symbol to copy for at least 95 % of the symbols. Claim 9 counts as "
    "reproduced if that fails on permutations more often than on independent draws (Fisher's exact test, p < 0.05), "
    "and as not reproduced if it fails in less than 20 % of all cases.",
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
    figures = f"attention fails in {a} of {n} runs on permutations, in {b} of {m} on draws; p = {p:.3f}"
    return Answer(9, "copying", verdict, figures)


# ------------------------------------------------------------------------------------------------------ all sections


def run(
    sets: Mapping[str, Data],
    out: str | Path,
    *,
    size: str = "quick",
    limit: int | None = None,
    tested: int | None = None,
    epochs: int | None = None,
    shape: Mapping[str, Any] | None = None,
    device: str | None = None,
    copies: bool = False,
    aligned: AlignedPairs | None = None,
    recipe: CopyRecipe = CopyRecipe(),  # noqa: B008
    callbacks: Callbacks = Callbacks(),  # noqa: B008
) -> Reproduction:
    """Test the claims; classifiers, records and findings are kept in ``out``, and the same call resumes.

    ``limit`` and ``epochs`` make a size smaller, and ``tested`` its test set alone. ``shape`` changes the classifiers.
    With ``copies``, networks also learn to copy sequences by ``recipe``, which answers claim 9. Words of ``aligned``
    pairs are looked up by their co-occurrence, which answers claim 8.
    """
    chosen = SIZES[size].limited(limit, fewer(limit, tested))
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
