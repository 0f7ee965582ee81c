"""A test with known ground truth for language models: a fact is planted in a long context, and methods should find it.

The model must use the fact: only where its removal makes the answer much less likely is an explanation either right or
wrong. Other contexts are skipped, and counted.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from math import exp
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from salience.core.erasure import Erasure
from salience.core.files import claim, locked, write_json
from salience.core.prompts import Prompt
from salience.core.ranking import top_share
from salience.core.shares import percent
from salience.data.needles import Needle, planted
from salience.errors import BadInput, NotLearnt
from salience.evaluation.advice import plural
from salience.evaluation.cases import CONTROLS, Case, Scores, Variant, described, variants
from salience.evaluation.table import Evaluation, compared
from salience.explanations.explainer import AnyMethod
from salience.generation.explaining import LanguageModel, as_language_model
from salience.metrics.metric import Metric
from salience.models.identity import digest
from salience.models.loading import as_model

NEEDLE_METHODS = (
    "lrp",
    "lrp:rules=cp",
    "lrp:kind=logit",
    "input_x_gradient",
    "gradient",
    "integrated_gradients:nodes=4",
    "occlusion",
    "context_cite:samples=32",
    "attention",
    "attention_rollout",
)
"""The methods that are tested unless others are named."""

TOKENS = 300
"""The fewest tokens of a context with its question."""

TOP = 0.1
"""The share of the prompt's tokens among which the needle's should be."""

TRIES = 10
"""How many contexts are tried at most, for each that is asked for."""

Report = Callable[[int, int, int], None]
"""Called with the number of contexts explained, skipped and asked for."""


@dataclass(frozen=True, slots=True)
class Use:
    """What it takes for a model to count as using the needle."""

    probability: float = 0.2
    """The lowest probability of the answer."""
    drop: float = 2.0
    """The least that the answer's log-probability must drop without the needle, in nats."""
    decoy: float = 0.5
    """The largest drop without the decoy, as a share of that without the needle."""

    def __call__(self, log_p: float, drop: float, decoy: float) -> bool:
        return exp(log_p) >= self.probability and drop >= self.drop and decoy < self.decoy * drop


# ------------------------------------------------------------------------------------------------------ measures


def needle_recall(tokens: Float[np.ndarray, " t"], marks: Bool[np.ndarray, " t"]) -> float:
    """The share of the needle's tokens among the highest-scoring tenth of the prompt's tokens."""
    return float((top_share(tokens, TOP) & marks).sum() / marks.sum())


def needle_first(sentences: Float[np.ndarray, " s"], place: int) -> float:
    """Whether the needle has the highest score of the context's sentences: 1, or 1/n if n of them have it."""
    return float((sentences[place] == sentences.max()) / (sentences == sentences.max()).sum())


def reciprocal_rank(sentences: Float[np.ndarray, " s"], place: int) -> float:
    """1 / rank of the needle among the context's sentences; of sentences with the same score, the mean rank."""
    ahead, equal = (sentences > sentences[place]).sum(), (sentences == sentences[place]).sum()
    return float(1 / (ahead + (equal + 1) / 2))


MEASURES = tuple(Metric(read, "faithfulness", limits=(0, 1)) for read in (needle_recall, needle_first, reciprocal_rank))


# ------------------------------------------------------------------------------------------------------ the trial


@dataclass(frozen=True, slots=True)
class NeedleResult:
    """How well each method finds needles that the model uses."""

    evaluation: Evaluation
    """Methods by measures, with intervals and controls."""
    skipped: int
    """How many contexts were left out because the model did not use the needle."""
    probability: float
    """The mean probability of the answers."""
    drop: float
    """The mean drop of the answers' log-probability without the needle."""
    tokens: float
    """The mean number of tokens of a prompt."""
    use: Use

    @property
    def notes(self) -> list[str]:
        """What was tested, in words."""
        e = self.evaluation
        return [
            f"{plural(e.texts, 'context')} of {self.tokens:.0f} tokens on average, in which {e.model} uses the needle: "
            f"the answer has a mean probability of {percent(self.probability)}, and its log-probability drops by "
            f"{self.drop:.1f} without the needle.",
            f"Skipped: {self.skipped} of {self.skipped + e.texts} contexts, where the probability was below "
            f"{percent(self.use.probability)}, the drop below {self.use.drop:g}, or the decoy mattered "
            f"{percent(self.use.decoy)} as much or more.",
        ]


def needle(
    model: object,
    method: Sequence[AnyMethod] = NEEDLE_METHODS,
    *,
    items: int = 100,
    tokens: int = TOKENS,
    use: Use = Use(),  # noqa: B008
    erase: Erasure = "delete",
    seed: int = 0,
    folder: str | Path | None = None,
    report: Report | None = None,
) -> NeedleResult:
    """Plant facts in long contexts, ask for them, and test whether methods find the sentence that the answer is from.

    Methods may be written with settings, as in ``"lrp:rules=cp,kind=logit"`` or ``"occlusion:by=word"``; those that
    erase parts of the prompt erase sentences unless they say otherwise. Contexts are made until the model uses the
    needle in as many as ``items``. With a ``folder``, finished contexts are saved, and the same call resumes.

    Raises :class:`~salience.errors.NotLearnt` if the model uses too few of the needles.
    """
    lm = as_language_model(as_model(model))
    if items < 1:
        raise BadInput(f"items={items} must be at least 1")
    every = variants(lm, method, "sentence", erase)
    asked = _Asked(lm, every, tokens, use, erase, seed)
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(locked(Path(folder)))
            claim(Path(folder) / "manifest.json", asked.facts(), "a different trial")
        rows = list(_until(asked.rows(None if folder is None else Path(folder)), items, report))
    used = [row for row in rows if row.used]
    if len(used) < items:
        raise NotLearnt(
            f"{lm.name} uses the needle in {len(used)} of {len(rows)} contexts, and {items} were asked for; ask for "
            "fewer, or make the contexts shorter"
        )
    return _result(asked, used, len(rows) - len(used))


@dataclass(frozen=True, slots=True)
class Row:
    """One context: what the model does, and the measures of each method; none where the needle is not used."""

    number: int
    tokens: int
    log_p: float
    drop: float
    """How much the log-probability of the answer drops without the needle."""
    decoy: float
    """The same without the decoy."""
    used: bool
    measured: Mapping[str, Mapping[str, Any]]
    """The settings and the measures of each method, by its name."""


@dataclass(frozen=True, slots=True)
class _Asked:
    lm: LanguageModel
    methods: Sequence[Variant]
    tokens: int
    use: Use
    erase: Erasure
    seed: int

    @property
    def names(self) -> list[str]:
        return [*(v.name for v in self.methods), *CONTROLS]

    def facts(self) -> dict[str, Any]:
        """What a folder is about."""
        return {
            "model": digest(self.lm),
            "tokens": self.tokens,
            "use": asdict(self.use),
            "erase": self.erase,
            "seed": self.seed,
        }

    def rows(self, folder: Path | None) -> Iterator[Row]:
        """Contexts without end. What a folder holds is read from it, and what is missing there is added."""
        for number in count():
            file = None if folder is None else folder / f"{number:05}.json"
            before = None if file is None or not file.exists() else Row(**json.loads(file.read_text("utf-8")))
            row = self.row(number, before)
            if file is not None and row is not before:
                write_json(file, asdict(row))
            yield row

    def row(self, number: int, before: Row | None = None) -> Row:
        """One context, measured by the methods that did not measure it before with the same settings."""
        settings = described(self.methods)
        known = {} if before is None else dict(before.measured)
        missing = [v for v in self.methods if known.get(v.name, {}).get("settings") != settings[v.name]]
        if before is not None and not (before.used and missing):
            return before
        item, case = self._case(number)
        place, decoy = (_sentence(case, item, at) for at in (item.place, item.decoy))
        row = before or self._tried(number, case, place, decoy)
        if not row.used:
            return row
        scores = dict(zip((v.name for v in missing), case.scores(missing), strict=True)) | case.controls(self.seed)
        new = {
            name: {"settings": settings.get(name, {}), "values": _measured(case, item, place, one)}
            for name, one in scores.items()
        }
        return replace(row, measured={**known, **new})

    def _tried(self, number: int, case: Case, place: int, decoy: int) -> Row:
        """What the model does with the whole context, without the needle, and without the decoy."""
        erased = np.zeros((3, len(case.segments)), dtype=bool)
        erased[1, place] = erased[2, decoy] = True
        whole, *less = case.values(case.without(erased), self.erase).tolist()
        drop, other = (whole - value for value in less)
        return Row(number, len(case.prompt), whole, drop, other, self.use(whole, drop, other), {})

    def _case(self, number: int) -> tuple[Needle, Case]:
        """The context of a number, with as many sentences as it takes to be long enough."""
        for sentences in count(4):
            item = planted(Random(f"{self.seed} {number}"), sentences)
            prompt = self.lm.encode_prompt(Prompt(text=item.text))
            if len(prompt) >= self.tokens:
                return item, Case(self.lm, prompt, self.lm.encode_answer(prompt, item.answer), "sentence")
        raise AssertionError("unreachable")


def _sentence(case: Case, item: Needle, at: int) -> int:
    """The index of the segment that a sentence of the context is."""
    span = item.span(at)
    return next(n for n, s in enumerate(case.segments) if (s.start, s.end) == span)


def _measured(case: Case, item: Needle, place: int, scores: Scores) -> dict[str, float]:
    content = case.batch.content[0].cpu().numpy()
    marks = np.zeros(len(content), dtype=bool)
    marks[: len(case.owners)] = case.owners == place
    context = np.array([s.end <= item.context_end for s in case.segments])
    sentences = scores.segments[context]
    return {
        "needle_recall": needle_recall(scores.tokens[content], marks[content]),
        "needle_first": needle_first(sentences, place),
        "reciprocal_rank": reciprocal_rank(sentences, place),
    }


def _until(rows: Iterator[Row], items: int, report: Report | None) -> Iterator[Row]:
    used = 0
    for number, row in enumerate(islice(rows, TRIES * items), 1):
        used += row.used
        yield row
        if report is not None:
            report(used, number - used, items)
        if used == items:
            return


def _result(asked: _Asked, rows: Sequence[Row], skipped: int) -> NeedleResult:
    values = {
        m.name: np.array([[row.measured[name]["values"][m.name] for name in asked.names] for row in rows])
        for m in MEASURES
    }
    limits = {m.name: m.limits for m in MEASURES}
    cells = compared(asked.names, MEASURES, values, limits, controls=CONTROLS, seed=asked.seed)
    evaluation = Evaluation(
        model=asked.lm.name,
        texts=len(rows),
        truncated=0,
        ids=tuple(str(row.number) for row in rows),
        methods=tuple(asked.names),
        metrics=tuple(values),
        cells={(c.method, c.metric): c for c in cells},
        curves={},
        gaps={},
        settings={
            "erase": asked.erase,
            "kind": "log_probability",
            "seed": asked.seed,
            "methods": described(asked.methods),
            "left_out": {},
        },
        controls=CONTROLS,
    )
    means = {name: float(np.mean([getattr(row, name) for row in rows])) for name in ("drop", "tokens")}
    return NeedleResult(evaluation, skipped, float(np.mean([exp(row.log_p) for row in rows])), use=asked.use, **means)
