"""Translation: does attention follow output relevance, and do both find the word that is translated?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from jaxtyping import Float

from salience.core.stats import Estimate
from salience.core.text import Span
from salience.data.examples import sampled
from salience.data.pairs import Pair
from salience.dynamics.agreement import Agreement
from salience.dynamics.alignment import (
    Alignment,
    by_words,
    check_aligned,
    diagonal,
    error_rate,
    links,
    source_words,
    unknown_words,
)
from salience.dynamics.dictionary import CoOccurrence, Proxy, TokenPair, fit_proxy
from salience.errors import BadInput
from salience.generation.answers import answers, spelled
from salience.generation.matrices import Forced, attention, input_x_gradient, linear, probed
from salience.models.seq2seq import Seq2Seq
from salience.training.sequences import EncodedPair, encode_pairs

Scores = Mapping[str, Float[np.ndarray, "t s"]]
"""Scores of answer × source, without special tokens, by what they are."""

CONTROLS = ("diagonal", "random")
PAIRINGS = (
    ("attention", "relevance"),
    ("attention", "linear relevance"),
    ("attention", "co-occurrence"),
    ("attention", "proxy"),
    ("influence", "relevance"),
    ("influence", "attention"),
    ("co-occurrence", "relevance"),
    ("proxy", "relevance"),
    ("attention", "uniform relevance"),
    ("influence", "uniform relevance"),
    ("proxy", "uniform relevance"),
)


@dataclass(frozen=True, slots=True)
class AlignmentRow:
    """The alignment error rate of one kind of scores."""

    scores: str
    error_rate: Estimate


@dataclass(frozen=True, slots=True)
class Aligned:
    """Error rates on one set of alignments, with bootstrap intervals over pairs."""

    data: str
    pairs: int
    unknown: float
    """The share of source words that do not occur in the training texts."""
    rows: tuple[AlignmentRow, ...]


@dataclass(frozen=True, slots=True)
class Translation:
    """What is measured of a translator."""

    model: str
    bleu: float
    signature: str
    """The settings of sacrebleu."""
    agreement: tuple[Agreement, ...]
    """A(u, v): how often the source token that is highest by u is in the top 5 % by v."""
    aligned: tuple[Aligned, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Dictionary:
    """What the training pairs say without any order: counts, and the proxy."""

    counts: CoOccurrence
    proxy: Proxy
    known: frozenset[str]
    """Words of the training sources, without case."""


def dictionary(model: Seq2Seq, pairs: Sequence[Pair], *, epochs: int = 10) -> Dictionary:
    """Count co-occurrences in the training pairs and train the proxy, both over the tokens of the model."""
    tokens: list[TokenPair] = [(_content(p), p.answer.ids) for p in encode_pairs(model, pairs)]
    known = frozenset(source_words(pairs))
    vocabulary = model.config.vocabulary
    return Dictionary(CoOccurrence.of(tokens, vocabulary), fit_proxy(tokens, vocabulary, epochs=epochs), known)


def _content(pair: EncodedPair) -> tuple[int, ...]:
    return pair.source.ids[:-1]


def scores_of(
    model: Seq2Seq, pair: EncodedPair, known: Dictionary, uniform: Seq2Seq | None = None, *, number: int = 0
) -> dict[str, Float[np.ndarray, "t s"]]:
    """All scores of one pair, the answer given. The random ones of every ``number`` are drawn anew."""
    step = _forced(model, pair)
    t, s = len(pair.answer), len(pair.source) - 1
    theirs = pair.answer.ids, _content(pair)
    scores: dict[str, Float[np.ndarray, "t s"]] = {
        name: values[:t, :s].double().cpu().numpy()
        for name, values in (
            ("attention", attention(step).scores),
            ("relevance", probed(step)),
            ("linear relevance", linear(step)),
            ("influence", input_x_gradient(step).scores),
            *((("uniform relevance", probed(_forced(uniform, pair))),) if uniform is not None else ()),
        )
    }
    scores["co-occurrence"] = known.counts.association(*theirs)
    scores["proxy"] = known.proxy.association(*theirs)
    scores["diagonal"] = diagonal(t, s)
    scores["random"] = np.random.default_rng(number).random((t, s))
    return scores


def _forced(model: Seq2Seq, pair: EncodedPair) -> Forced:
    return Forced.of(model, model.batch([pair.source]), model.answers([pair.answer.ids]))


# ---------------------------------------------------------------------------------------------------- agreement


def agreements(rows: Sequence[Scores]) -> tuple[Agreement, ...]:
    """Agreement over all places of all answers; intervals are over pairs of texts, each with its mean over places."""
    return tuple(
        Agreement.between(f"{u}, {v}", [row[u] for row in rows], [row[v] for row in rows])
        for u, v in PAIRINGS
        if rows and u in rows[0] and v in rows[0]
    )


# ---------------------------------------------------------------------------------------------------- alignment


def aligned(
    name: str,
    model: Seq2Seq,
    pairs: Sequence[Pair],
    known: Dictionary,
    uniform: Seq2Seq | None = None,
    step: Callable[[], None] = lambda: None,
) -> Aligned:
    """Alignment error rates of all scores, with the answers given."""
    check_aligned(name, pairs)
    counts: dict[str, list[Alignment]] = {}
    for number, (pair, encoded) in enumerate(zip(pairs, encode_pairs(model, pairs), strict=True)):
        for kind, matrix in scores_of(model, encoded, known, uniform, number=number).items():
            made = links(by_words(matrix, pair, encoded.answer.offsets, _offsets(encoded)))
            counts.setdefault(kind, []).append(Alignment.of(made, pair))
        step()
    rows = tuple(AlignmentRow(kind, error_rate(each)) for kind, each in counts.items())
    return Aligned(name, len(pairs), unknown_words(pairs, known.known), rows)


def _offsets(pair: EncodedPair) -> Sequence[Span]:
    return pair.source.offsets[:-1]


# ---------------------------------------------------------------------------------------------------- quality


def bleu(translations: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """BLEU by sacrebleu, with its signature.

    Paper: Post 2018, A call for clarity in reporting BLEU scores, arXiv:1804.08771
    """
    try:
        metric: Any = import_module("sacrebleu.metrics").BLEU()
    except ImportError as error:
        raise BadInput("BLEU needs sacrebleu, which is not installed: pip install 'salience[translation]'") from error
    score = metric.corpus_score(list(translations), [list(references)]).score
    return float(score), str(metric.get_signature())


def translated(model: Seq2Seq, texts: Sequence[str], *, beam: int = 1) -> list[str]:
    """The answer to every text."""
    return [spelled(model, tokens) for tokens in answers(model, model.encode(texts), beam=beam)]


def translation(
    model: Seq2Seq,
    train: Sequence[Pair],
    test: Sequence[Pair],
    *,
    alignments: Mapping[str, Sequence[Pair]] | None = None,
    uniform: Seq2Seq | None = None,
    compared: int = 200,
    beam: int = 1,
    stage: Callable[[str], None] = lambda _: None,
) -> Translation:
    """Measure a translator: BLEU, agreement of attention with relevance and co-occurrence, alignment error rates.

    ``train`` are the pairs that it was trained on, from which co-occurrences are counted; ``compared`` is the number of
    test pairs for agreement. ``alignments`` are pairs with word alignments, by name. ``uniform`` is a twin trained with
    uniform attention.
    """
    if uniform is not None and uniform.tokenizer.to_str() != model.tokenizer.to_str():
        raise BadInput(f"{uniform.name} has another tokenizer than {model.name}; train it from the same start")
    stage("translating")
    score, signature = bleu(
        translated(model, [pair.source for pair in test], beam=beam), [pair.answer for pair in test]
    )
    stage("counting co-occurrences")
    known = dictionary(model, train)
    stage("comparing attention and relevance")
    rows = [scores_of(model, pair, known, uniform) for pair in encode_pairs(model, sampled(test, compared))]
    results: list[Aligned] = []
    for name, pairs in (alignments or {}).items():
        stage(f"aligning {name}")
        results.append(aligned(name, model, pairs, known, uniform))
    return Translation(model.name, score, signature, agreements(rows), tuple(results))
