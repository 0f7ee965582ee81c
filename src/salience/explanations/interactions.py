"""What pairs of words do together: explained by an interaction method, as plain Python."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from salience.core.characters import to_json
from salience.core.executor import Report
from salience.core.frames import frame
from salience.core.passes import Needs, observe
from salience.core.rows import each_text
from salience.core.target import Target
from salience.core.text import Encoded, Span, members
from salience.core.types import Batch, Model
from salience.data.texts import texts_of, warn_about_files
from salience.errors import BadInput, BadModel
from salience.explanations.explainer import Configured, Prediction, as_target, plain, predictions_of, prepare
from salience.explanations.explanation import Explanation
from salience.explanations.hierarchy import Group, hierarchy
from salience.methods.interactions import Pairwise, find_interaction
from salience.models.loading import as_model

if TYPE_CHECKING:
    from pandas import DataFrame

DEFAULT = "pairwise_occlusion"
NAMED = 3
"""The number of pairs in a repr."""

_EMPTY: Mapping[str, Any] = MappingProxyType({})


class Pair(NamedTuple):
    """Two units of a text, by their numbers, and their interaction."""

    first: int
    second: int
    score: float


@dataclass(frozen=True, slots=True)
class Interactions:
    """What every pair of units of one text does to one number of one prediction that neither does alone.

    ``matrix`` is symmetric and 0 on its diagonal. ``main`` is the effect of each unit by itself, as the method defines
    it; ``scores`` are the effects with every interaction shared equally by its two units. ``groups`` are units that
    belong together, with their joint effect, if the method forms groups; then ``scores`` share these effects instead.
    ``signed`` interactions are positive where two units do more for the target together; others only have a strength.
    ``pair_at`` and ``unseen`` are those of an :class:`Explanation`.
    """

    text: str
    units: tuple[str, ...]
    spans: tuple[Span, ...]
    matrix: tuple[tuple[float, ...], ...]
    main: tuple[float, ...]
    scores: tuple[float, ...]
    target: Target
    value: float
    probabilities: Mapping[str, float]
    method: str
    settings: Mapping[str, Any]
    model: str
    signed: bool = True
    gaps: Mapping[str, float] = field(default_factory=lambda: _EMPTY)
    groups: tuple[tuple[tuple[int, ...], float], ...] = ()
    pair_at: int | None = None
    unseen: tuple[Span, ...] = ()

    def __repr__(self) -> str:
        pairs = ", ".join(f"{self.units[i]!r} × {self.units[j]!r} {score:.3g}" for i, j, score in self.pairs()[:NAMED])
        return f"<interactions of {len(self.units)} units by {self.method}: {pairs}>"

    def __hash__(self) -> int:
        return hash((self.text, self.method, self.model, self.target, self.matrix))

    def pairs(self) -> list[Pair]:
        """Return all pairs, the strongest interaction first."""
        every = [Pair(i, j, self.matrix[i][j]) for i, j in combinations(range(len(self.units)), 2)]
        return sorted(every, key=lambda pair: -abs(pair.score))

    def tree(self) -> Group:
        """Return the text as a tree of groups; see :func:`hierarchy`."""
        return hierarchy(self.matrix, self.scores, signed=self.signed)

    def summed(self) -> Explanation:
        """Return ``scores``, one per unit, as an explanation; the ``error`` of interactions is not one of scores."""
        return Explanation(
            text=self.text,
            tokens=self.units,
            offsets=self.spans,
            special=(False,) * len(self.units),
            scores=self.scores,
            target=self.target,
            value=self.value,
            probabilities=self.probabilities,
            method=self.method,
            settings=self.settings,
            model=self.model,
            signed=True,
            gaps={name: gap for name, gap in self.gaps.items() if name != "error"},
            pair_at=self.pair_at,
            unseen=self.unseen,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the interactions as a dictionary, as printed by ``--json``."""
        data: dict[str, Any] = {
            "text": self.text,
            "method": self.method,
            "settings": dict(self.settings),
            "model": self.model,
            "target": {"label": self.target.label, "against": self.target.against, "kind": self.target.kind},
            "value": self.value,
            "probabilities": dict(self.probabilities),
            "units": list(self.units),
            "spans": [list(span) for span in self.spans],
            "main": list(self.main),
            "scores": list(self.scores),
            "matrix": [list(row) for row in self.matrix],
            "signed": self.signed,
            "gaps": dict(self.gaps),
            "groups": [{"units": list(units), "effect": effect} for units, effect in self.groups],
        }
        paired = {} if self.pair_at is None else {"pair_at": self.pair_at}
        return data | paired | ({"unseen": [list(span) for span in self.unseen]} if self.unseen else {})

    def to_json(self) -> str:
        """Return the interactions as one line of JSON, in which every character is safe to print."""
        return to_json(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Interactions":
        """Create interactions from the output of :meth:`to_dict`."""
        return cls(
            text=data["text"],
            units=tuple(data["units"]),
            spans=tuple((int(a), int(b)) for a, b in data["spans"]),
            matrix=tuple(tuple(row) for row in data["matrix"]),
            main=tuple(data["main"]),
            scores=tuple(data["scores"]),
            target=Target(**data["target"]),
            value=data["value"],
            probabilities=data["probabilities"],
            method=data["method"],
            settings=data["settings"],
            model=data["model"],
            signed=data["signed"],
            gaps=data["gaps"],
            groups=tuple((tuple(one["units"]), float(one["effect"])) for one in data["groups"]),
            pair_at=data.get("pair_at"),
            unseen=tuple((int(a), int(b)) for a, b in data.get("unseen", ())),
        )

    def to_frame(self) -> "DataFrame":
        """Return a pandas DataFrame with one row per pair, the strongest interaction first.

        ``first_at`` and ``second_at`` are the numbers of the two units, which tell repeated words apart.
        """
        pairs = self.pairs()
        names = {"first": [self.units[p.first] for p in pairs], "second": [self.units[p.second] for p in pairs]}
        places = {"first_at": [p.first for p in pairs], "second_at": [p.second for p in pairs]}
        return frame({**names, **places, "interaction": [p.score for p in pairs]})

    def _repr_html_(self) -> str:
        from salience.views.interactions import fragment

        return fragment([self])


def explain_interactions(
    model: object,
    texts: object,
    method: str | Callable[..., list[Pairwise]] = DEFAULT,
    *,
    target: Target | str | int | None = None,
    against: str | int | None = None,
    kind: str = "logit",
    text_column: str = "text",
    pair_column: str | None = None,
    report: Report | None = None,
    **settings: Any,
) -> list[Interactions]:
    """Explain what pairs of words do together, text by text.

    ``method`` is a name (``salience.methods.INTERACTIONS`` lists them) or a function that returns one
    :class:`~salience.methods.Pairwise` per text; everything else is as in :func:`salience.explain`. A text needs at
    least two units. ``report`` is called with the number of texts done and their total.

    >>> explain_interactions(model, "The film is not bad.")                               # doctest: +SKIP
    """
    function = find_interaction(method) if isinstance(method, str) else method
    (configured,) = prepare(function, settings)
    many, known = texts_of(texts, text_column=text_column, pair_column=pair_column), as_model(model)
    warn_about_files([texts])
    wanted, encoded = as_target(target, against, kind), known.encode(many)
    named = [_units(e, str(configured.settings.get("unit", "word"))) for e in encoded]
    _check_counts(encoded, named, str(configured.settings.get("unit", "word")))

    def work(batch: Batch, items: list[int]) -> list[Interactions]:
        return _explained(known, batch, [named[i] for i in items], configured, wanted)

    return each_text(known, encoded, work, report=report)


_Units = list[tuple[str, Span]]
"""The text and the span of every unit of a text."""


def _units(encoded: Encoded, unit: str) -> _Units:
    if unit == "word":
        return [(encoded.text[a:b], (a, b)) for (a, b), _ in members(encoded.text, encoded.offsets, encoded.special)]
    tokens = zip(encoded.tokens, encoded.offsets, encoded.special, strict=True)
    return [(encoded.text[a:b] or token, (a, b)) for token, (a, b), special in tokens if not special]


def _check_counts(encoded: Sequence[Encoded], named: Sequence[_Units], unit: str) -> None:
    for number, (text, units) in enumerate(zip(encoded, named, strict=True), 1):
        if len(units) < 2:
            other = ", or unit=token (--level token)" if unit == "word" else ""
            raise BadInput(
                f"text {number}, {text.text[:60]!r}, has {len(units)} {unit}{'' if len(units) == 1 else 's'}; an "
                f"interaction takes two. Use a longer text{other}, or explain single words with salience.explain"
            )


def _explained(
    model: Model, batch: Batch, named: Sequence[_Units], configured: Configured, target: Target
) -> list[Interactions]:
    shared = observe(model, batch, [target], Needs.NOTHING)
    results = configured.method(model, batch, shared.target, **configured.settings)
    predictions = predictions_of(model, shared.output, shared.target)
    rows = zip(batch.encoded, named, results, predictions, strict=True)
    return [_one(model, *row, configured) for row in rows]


def _one(
    model: Model, encoded: Encoded, named: _Units, result: Pairwise, prediction: Prediction, configured: Configured
) -> Interactions:
    name = configured.method.__name__
    if not bool(result.matrix.isfinite().all()):
        raise BadModel(
            f"the interactions of {name} for {model.name} are NaN or infinite. Half precision is the usual cause (load "
            "the model with dtype='float32')."
        )
    settings = {**configured.settings, **result.settings}
    return Interactions(
        text=encoded.text,
        units=tuple(text for text, _ in named),
        spans=tuple(span for _, span in named),
        matrix=tuple(tuple(row) for row in result.matrix.cpu().float().tolist()),
        main=tuple(result.main.cpu().float().tolist()),
        scores=tuple(result.scores.cpu().float().tolist()),
        target=prediction.target,
        value=prediction.value,
        probabilities=dict(prediction.probabilities),
        method=name,
        settings={k: plain(v, 0) for k, v in settings.items()},
        model=model.name,
        signed=result.signed,
        gaps=dict(result.gaps),
        groups=result.groups,
        pair_at=encoded.pair_at,
        unseen=encoded.unseen,
    )
