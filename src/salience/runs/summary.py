"""The most salient words of each label over a whole run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from math import inf, isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from salience.core import text as _words
from salience.core.stats import MINIMUM, Moments, moments_interval, within
from salience.errors import BadInput
from salience.explanations.explanation import directed

if TYPE_CHECKING:
    import pandas

    from salience.runs.run import Run

LEAST = MINIMUM
"""The number of texts that a word must occur in: with fewer, there is no interval."""


@dataclass(frozen=True, slots=True)
class SalientWord:
    """How salient a word is where a label is explained.

    ``mean`` is the mean over the texts with the word of its share: its score divided by the sum of the absolute scores
    of all words of the text. ``low`` and ``high`` are a 95 % interval of that mean, of this word by itself,
    or NaN if it has none.
    """

    method: str
    label: str
    word: str
    texts: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class Summary:
    """Words by method and explained label, the most salient first: by the lower end of their intervals."""

    run: str
    model: str
    texts: Mapping[str, int]
    """The number of texts that were explained for each label."""
    methods: tuple[str, ...]
    signed: tuple[str, ...]
    """The methods whose scores have a direction, so that a share may count against its label."""
    least: int
    words: tuple[SalientWord, ...]

    def top(self, method: str, label: str, count: int = 10) -> list[SalientWord]:
        """The most salient words of a label: those that count for it, with an interval above 0."""
        own = (word for word in self.words if (word.method, word.label) == (method, label) and word.low > 0)
        return list(islice(own, count))

    def to_frame(self) -> "pandas.DataFrame":
        """A pandas DataFrame with one row per method, label and word."""
        import pandas

        return pandas.DataFrame(list(map(asdict, self.words)), columns=list(SalientWord.__slots__))

    def to_dict(self, count: int | None = None) -> dict[str, Any]:
        words = [w for m in self.methods for label in self.texts for w in self.top(m, label, count or len(self.words))]
        facts = {"run": self.run, "model": self.model, "texts": dict(self.texts), "least": self.least}
        return {**facts, "words": list(map(asdict, words))}

    def __repr__(self) -> str:
        return f"Summary({self.run!r}, {sum(self.texts.values()):,} texts, {len(self.words):,} words)"

    def _repr_html_(self) -> str:
        from salience.views.summary import fragment

        return fragment(self)


def summarise(
    run: "Run", columns: Sequence[str] = (), *, least: int = LEAST, report: Callable[[int, int], None] | None = None
) -> Summary:
    """Read a run text by text and count its words, regardless of case; memory grows only with the number of words."""
    if least < 2:
        raise BadInput(f"least={least} must be at least 2: an interval needs two texts")
    run.warn_unless_finished()
    texts: dict[str, int] = {}
    words: dict[tuple[str, str], dict[str, Moments]] = {}
    total, chosen, signed = len(run), list(columns or run.methods), set[str]()
    for number, record in enumerate(run.records(*chosen), 1):
        label = record["target"]["label"]
        texts[label] = texts.get(label, 0) + 1
        groups = _words.members(record["text"], [(a, b) for a, b in record["offsets"]], record["special"])
        names = [record["text"][a:b].casefold() for (a, b), _ in groups]
        for column in chosen:
            if column not in signed and directed((record.get("signed") or {}).get(column), record[column]):
                signed.add(column)
            moments = words.setdefault((column, label), {})
            for name, share in _shares(names, _words.reduce(groups, record[column])).items():
                (moments.get(name) or moments.setdefault(name, Moments())).add(share)
        if report is not None and number % 256 == 0:
            report(number, total)
    if not texts:
        raise BadInput(f"{run.path} holds no explanations yet; run the command that made it again")
    labels = sorted(texts)
    ranked = [word for c in chosen for label in labels for word in _ranked(c, label, words[c, label], least)]
    model = run.manifest["model"]["name"]
    return Summary(
        run=str(run.path),
        model=model,
        texts={label: texts[label] for label in labels},
        methods=tuple(chosen),
        signed=tuple(column for column in chosen if column in signed),
        least=least,
        words=tuple(ranked),
    )


def _shares(names: Sequence[str], scores: Sequence[float]) -> dict[str, float]:
    """The share of each different word of a text; white space that is a token of its own is not a word."""
    total = sum(map(abs, scores)) or 1.0
    shares: dict[str, float] = {}
    for name, score in zip(names, scores, strict=True):
        if name.strip():
            shares[name] = shares.get(name, 0.0) + score / total
    return shares


def _ranked(method: str, label: str, words: Mapping[str, Moments], least: int) -> list[SalientWord]:
    chosen = {word: m for word, m in words.items() if m.n >= least}
    n, mean, squares, cubes = np.array([(m.n, m.mean, m.squares, m.cubes) for m in chosen.values()]).reshape(-1, 4).T
    bounds = np.stack(within(moments_interval(n, mean, squares, cubes), mean, (-1, 1)), 1).tolist()
    each = [
        SalientWord(method, label, word, m.n, m.mean, low, high)
        for (word, m), (low, high) in zip(chosen.items(), bounds, strict=True)
    ]
    return sorted(each, key=lambda word: (inf if isnan(word.low) else -word.low, word.word))
