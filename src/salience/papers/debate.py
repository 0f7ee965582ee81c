"""Shared by the papers of the attention debate: models, tests, and published numbers beside ours.

A paper is a value: its published numbers, and a protocol that trains pooled classifiers, runs tests of
:mod:`salience.audits` on them, and returns quantities and the directions that the paper reports.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from salience.audits.adversarial_twin import LOSS
from salience.audits.adversary import Search
from salience.audits.auditor import POOLED, Callbacks, run_test
from salience.audits.finding import Finding, Measure
from salience.audits.study import Study
from salience.core.files import claim, fingerprint, locked
from salience.core.shares import percent
from salience.core.stats import Estimate, estimate
from salience.core.types import Model
from salience.data.examples import Example, encode_examples, labels_in, sampled
from salience.errors import BadInput
from salience.models.loading import load_to_train
from salience.models.pooled import Pooled, PooledConfig, stored_tokenizer
from salience.models.vectors import WordVectors, initialise, word_vectors
from salience.training.loop import Recipe
from salience.training.twins import Twins

VOCABULARY = 30_000
"""The largest number of words of a model."""

ALIASES = {
    "sst": "sst",
    "sst2": "sst",
    "imdb": "imdb",
    "ag_news": "ag_news",
    "agnews": "ag_news",
    "20news": "20news",
    "newsgroups_sports": "20news",
    "occupation": "occupation",
    "pruthi_occupation": "occupation",
    "gender": "gender",
    "pronoun": "gender",
    "pruthi_pronoun": "gender",
    "sst_wiki": "sst_wiki",
    "pruthi_sst_wiki": "sst_wiki",
}
"""The data sets of the papers, by the names that a user may give them."""

SAME_SPLIT = frozenset({"sst", "gender", "sst_wiki"})
"""The data sets that everyone has in the papers' split. Of the others, public copies are split or sampled differently:
20 Newsgroups by date; of AG News, IMDB and the biographies of occupations, often only a part can be had.
"""


# ------------------------------------------------------------------------------------------------------ results


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity on one data set, beside the published number, if any."""

    data: str
    quantity: str
    ours: Estimate
    published: float | None
    comparable: bool
    """Whether both are the same quantity of the same kind of model on the same texts; otherwise compare directions."""

    @property
    def mark(self) -> str:
        if self.published is None:
            return ""
        return "comparable" if self.comparable else "direction only"


@dataclass(frozen=True, slots=True)
class Direction:
    """A claim of the paper, and whether it holds here; None if the intervals do not decide."""

    data: str
    claim: str
    holds: bool | None
    figures: str

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "undecided"}[self.holds]


@dataclass(frozen=True, slots=True)
class DebateResult:
    """The results of one paper on some data sets."""

    paper: str
    title: str
    source: str
    rows: tuple[Row, ...]
    directions: tuple[Direction, ...]
    settings: Mapping[str, Any]
    notes: tuple[str, ...]
    """How the protocol here differs from the paper's."""


# ------------------------------------------------------------------------------------------------------ papers


@dataclass(frozen=True, slots=True)
class Size:
    """How much of the protocol is run."""

    train: int | None
    """Texts to train on; None for all."""
    test: int | None
    """Texts to test on; None for all."""
    recipe: Recipe = POOLED
    seeds: int = 2
    weights: tuple[float, ...] = ()
    """Weights λ of a loss, if the protocol tries several."""
    search: Search = field(default_factory=Search)
    searched: int | None = None
    """Texts for which adversarial attention is searched; None for all."""

    def limited(self, train: int | None, test: int | None) -> "Size":
        """The same size with at most so many texts to train on and to test on."""
        return replace(self, train=fewer(self.train, train), test=fewer(self.test, test))


def fewer(a: int | None, b: int | None) -> int | None:
    """The smaller number of texts; None stands for all."""
    return min((n for n in (a, b) if n is not None), default=None)


QUICK_SEARCH = Search(steps=100, restarts=2)

IMPROVEMENT = {"quick": Size(train=2000, test=200, search=QUICK_SEARCH), "full": Size(train=None, test=2000)}
"""The sizes of the papers that make attention a better explanation."""

DIRECTIONS_ONLY = "No published numbers are given beside ours: only the paper's directions are compared."


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that a protocol measured."""

    name: str
    estimate: Estimate
    alike: bool = True
    """Whether the paper measures the same quantity of the same kind of model."""


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a number is on the expected side of a bound; None if its interval holds the bound."""

    holds: bool | None
    figures: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a protocol found on one data set: quantities, and each claim with the checks it rests on."""

    quantities: Sequence[Quantity]
    claims: Mapping[str, Sequence[Check]]


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper of the debate."""

    name: str
    title: str
    source: str
    sizes: Mapping[str, Size]
    protocol: "Callable[[Experiment], Outcome]"
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """Published numbers by data set and name of the quantity."""
    embedding: int = 300
    """Width of the embeddings, unless word vectors are given."""
    scale: float = 0.1
    """Standard deviation of random embeddings. It was chosen after seeing results: see docs/papers.md."""
    pretrained: bool = False
    """Whether the paper's models start from pretrained word vectors."""
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Changes of the recipe for some data sets."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Data:
    """A labelled data set."""

    train: Sequence[Example]
    test: Sequence[Example]
    selected: bool = False
    """Whether the texts are only those of some labels."""

    def of_labels(self, labels: Sequence[str]) -> "Data":
        """Only the texts of these labels."""
        known = sorted({str(e.label) for e in self.train})
        if missing := [label for label in labels if label not in known]:
            raise BadInput(f"no training text has the label {missing[0]!r}; the labels are {', '.join(known)}")
        train, test = (
            [replace(e, label=str(e.label)) for e in part if str(e.label) in labels] for part in (self.train, self.test)
        )
        if not test:
            raise BadInput(f"no test text has one of the labels {', '.join(labels)}")
        return Data(train, test, selected=True)


@dataclass(frozen=True, slots=True, eq=False)
class Experiment:
    """One data set: what a protocol trains and tests, with a folder in which everything is kept."""

    train: Sequence[Example]
    test: Sequence[Example]
    labels: Sequence[str]
    tokenizer: Tokenizer
    folder: Path
    size: Size
    embedding: int
    scale: float
    vectors: WordVectors | None
    encoder: str | None
    """A transformer that a protocol may train as well."""
    device: str | None
    callbacks: Callbacks

    def study(self, name: str, **shape: Any) -> Study:
        """A study whose model is an untrained pooled classifier of this shape, of which twins are trained."""
        changes: dict[str, Any] = {"embedding": self.embedding, "embedding_std": self.scale, **shape}
        config = PooledConfig(tuple(self.labels), self.tokenizer.get_vocab_size(), **changes)
        model = Pooled.new(config, self.tokenizer, name=name)
        if self.vectors is not None:
            initialise(model, self.vectors)
        model.module.to(self.device or "cpu")
        return self._study(name, model, self.size.recipe)

    def transformer(self, recipe: Recipe) -> Study:
        """A study of the transformer that was given."""
        assert self.encoder is not None
        return self._study("transformer", load_to_train(self.encoder, self.labels, device=self.device), recipe)

    def _study(self, name: str, model: Model, recipe: Recipe) -> Study:
        step = self.callbacks.step
        report = None if step is None else lambda twin, progress: step(f"{self.folder.name}, {name}: {twin}", progress)  # pyright: ignore
        twins = Twins(self.folder / name / "twins", self.train, recipe, report)
        return Study(model, self.test, encode_examples(model, self.test), twins=twins)

    def trained(self, name: str, **shape: Any) -> Study:
        """A study whose model is trained on the task; its twins start like it."""
        study = self.study(name, **shape)
        untrained, model = study.model, study.standard()
        assert isinstance(untrained, Pooled)
        assert isinstance(model, Pooled)
        return replace(study, model=replace(model, name=name, initial_embeddings=untrained.initial_embeddings))

    def finding(self, name: str, study: Study, test: Callable[..., Finding], **settings: Any) -> Finding:
        """Run a test on the model of this name, unless its finding is in the folder already."""
        shown = Callbacks(lambda what: self.callbacks.test(f"{self.folder.name}, {name}: {what}"))
        return run_test(study, test, settings, self.folder / name, shown)

    def few(self, study: Study) -> Study:
        """The study on those texts for which adversarial attention is searched."""
        chosen = sampled(range(len(self.test)), self.size.searched or len(self.test))
        return replace(study, examples=[study.examples[i] for i in chosen], encoded=[study.encoded[i] for i in chosen])


def numbers(names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    """Published numbers by name of the quantity."""
    return dict(zip(names, values, strict=True))


def accuracy(study: Study) -> Measure:
    """The accuracy of the model of a study."""
    return Measure.of("accuracy", study.correct(study.model))


def quantities(prefix: str, measures: Iterable[Measure], *, alike: bool = True) -> list[Quantity]:
    """Measures as quantities of the model ``prefix``."""
    return [Quantity(f"{prefix}: {measure.name}", measure.estimate, alike) for measure in measures]


# ------------------------------------------------------------------------------------------------------ directions


def above(measure: Measure, bound: float = 0.0) -> Check:
    """The mean is above the bound."""
    return decided(measure.estimate, bound, f"{measure.name} {measure.estimate}")


def decided(e: Estimate, bound: float, figures: str) -> Check:
    """Whether a mean is above a bound; undecided if its interval holds the bound."""
    low, high = e.bounds
    return Check(True if low > bound else False if high < bound else None, figures)


def below(measure: Measure, bound: float) -> Check:
    """The mean is below the bound."""
    check = above(measure, bound)
    return replace(check, holds=None if check.holds is None else not check.holds)


def exceeds(first: str, a: Measure, second: str, b: Measure, *, times: float = 1.0) -> Check:
    """The mean of a is above that of times · b, compared text by text."""
    lead = above(_difference("difference", a, b, times))
    means = f"{first} {a.estimate.mean:.3f}, {second} {times * b.estimate.mean:.3f}"
    return replace(lead, figures=f"{means}, {lead.figures}")


def keeps_accuracy(model: str, own: Measure, base: Measure) -> Check:
    """A model is at most 2 points less accurate than the base."""
    lead = above(Measure.between("difference", own.values, base.values), -LOSS)
    means = f"accuracy of {model} {percent(own.estimate.mean, 1)}, of the base {percent(base.estimate.mean, 1)}"
    return replace(lead, figures=f"{means}, {lead.figures}")


def _difference(name: str, a: Measure, b: Measure, times: float = 1.0) -> Measure:
    values = np.array(a.values) - times * np.array(b.values)
    return Measure(name, estimate(values, DIFFERENCE), tuple(values.tolist()))


DIFFERENCE = (-2.0, 2.0)
"""The limits of a difference of two shares or correlations, or of a share and twice another."""


def _joined(data: str, claim: str, checks: Sequence[Check]) -> Direction:
    """A claim holds if all its checks do, and fails if one of them does."""
    answers = {check.holds for check in checks}
    holds = False if False in answers else None if None in answers else True
    return Direction(data, claim, holds, "; ".join(check.figures for check in checks))


# ------------------------------------------------------------------------------------------------------ running


def run(
    paper: Paper,
    sets: Mapping[str, Data],
    out: str | Path,
    *,
    size: str = "quick",
    limit: int | None = None,
    tested: int | None = None,
    epochs: int | None = None,
    vectors: str | Path | None = None,
    encoder: str | None = None,
    device: str | None = None,
    callbacks: Callbacks = Callbacks(),  # noqa: B008
) -> DebateResult:
    """Run a paper's protocol on data sets by name; models and findings are kept in ``out``, and the same call resumes.

    ``limit`` and ``epochs`` make a size smaller, and ``tested`` its test set alone. ``vectors`` is a file of word
    vectors, and ``encoder`` the name of a transformer that the protocol may train as well. Published numbers are
    comparable with those of the full size only, on data sets whose split is the paper's (``SAME_SPLIT``); fewer test
    texts widen the intervals and change nothing else.
    """
    folder, chosen = Path(out), paper.sizes[size].limited(limit, fewer(limit, tested))
    shorter = {"epochs": epochs} if epochs else {}
    chosen = replace(chosen, recipe=replace(chosen.recipe, **shorter))
    whole = size == "full" and not limit and not epochs and (vectors is not None or not paper.pretrained)
    rows: list[Row] = []
    directions: list[Direction] = []
    trained: dict[str, int] = {}
    with locked(folder, mark="paper.json"):
        claim(folder / "paper.json", {"paper": paper.name}, what="other results")
        for name, data in sets.items():
            known = ALIASES.get(name, name)
            changes = dict(paper.recipes.get(known, {})) if size == "full" else {}
            recipe = replace(chosen.recipe, **changes | shorter)
            trained[name] = recipe.epochs
            experiment = _experiment(
                paper, data, folder / name, replace(chosen, recipe=recipe), vectors, encoder, device, callbacks
            )
            outcome = paper.protocol(experiment)
            published = paper.published.get(known, {})
            same = known in SAME_SPLIT and not data.selected
            faithful = whole and same and len(experiment.labels) == 2  # as in all data sets with published numbers
            rows += [
                Row(name, q.name, q.estimate, published.get(q.name), q.alike and faithful and q.name in published)
                for q in outcome.quantities
            ]
            directions += [_joined(name, *one) for one in outcome.claims.items()]
    given = {
        "epochs": epochs,
        "limit": limit,
        "tested": tested,
        "vectors": vectors and str(vectors),
        "transformer": encoder,
    }
    given = {k: v for k, v in given.items() if v is not None}
    settings = {"size": size, **given, **asdict(chosen), "epochs_by_data": trained}
    return DebateResult(paper.name, paper.title, paper.source, tuple(rows), tuple(directions), settings, paper.notes)


def _experiment(
    paper: Paper,
    data: Data,
    folder: Path,
    size: Size,
    vectors: str | Path | None,
    encoder: str | None,
    device: str | None,
    callbacks: Callbacks,
) -> Experiment:
    """The data set of an experiment and its tokenizer; refuses a folder that holds the results of something else."""
    train, test = (sampled(part, n) if n else part for part, n in ((data.train, size.train), (data.test, size.test)))
    labels = labels_in(train, folder.name)
    names = tuple(map(str, range(labels))) if isinstance(labels, int) else tuple(labels)
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"data set": fingerprint(list(train), list(test)), "size": fingerprint(size), "model": encoder}
    claim(folder / "data.json", facts, what="other results")
    tokenizer = stored_tokenizer(folder / "tokenizer.json", (str(e.text) for e in train), VOCABULARY)
    read = None if vectors is None else word_vectors(vectors, only=tokenizer.get_vocab())
    same = None if read is None else fingerprint(read.words, read.matrix.tobytes())
    claim(folder / "vectors.json", {"file of word vectors": same}, what="other results")
    embedding = paper.embedding if read is None else read.width
    return Experiment(
        train, test, names, tokenizer, folder, size, embedding, paper.scale, read, encoder, device, callbacks
    )
