"""One answer of a language model, ready to be explained by many methods and measured by many metrics.

Every changed copy of the prompt is run once, for whatever method or metric asks for it first.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from salience.core.erasure import Erasure
from salience.core.memory import Memory
from salience.core.rows import Erased, erased_values
from salience.core.settings import read_value
from salience.core.target import Kind
from salience.core.text import Encoded, Part, spans
from salience.core.types import Batch, Model, Targets
from salience.errors import BadInput, choose
from salience.explanations.explainer import AnyMethod, Configured, check_finite, plain, scale, settled
from salience.generation.explaining import LanguageModel, check_kind, joined, prepared
from salience.generation.scoring import scored
from salience.generation.segments import By, owners, segments
from salience.models.huggingface.answering import Answer

TOKEN = "token"

# ------------------------------------------------------------------------------------------------------ methods


@dataclass(frozen=True, slots=True)
class Variant:
    """A method with its settings, the number that it explains, and the segments that it erases, if it erases any."""

    name: str
    method: Configured
    kind: Kind = "log_probability"
    by: By | None = None


def variants(lm: LanguageModel, methods: Sequence[AnyMethod], by: By, erase: Erasure) -> list[Variant]:
    """Look up methods that may be written with settings, as in ``"lrp:rules=cp,kind=logit"``.

    Besides the settings of the method, ``kind`` is the explained number, and ``by`` what a method that erases parts of
    the prompt erases: a kind of segment, or tokens. Where nothing else is set, it erases as the metrics do.
    """
    every = [_variant(lm, method, by, erase) for method in methods]
    names = [v.name for v in every]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"{twice[0]} was asked for twice; a table has one row per method and settings")
    return every


def _variant(lm: LanguageModel, method: AnyMethod, by: By, erase: Erasure) -> Variant:
    written = method if isinstance(method, str) else method.__name__
    name, _, more = written.partition(":")
    settings = dict(_setting(text, written) for text in more.split(",") if more)
    kind, unit = settings.pop("kind", "log_probability"), settings.pop("by", by)
    own = None if choose(unit, (*get_args(By), TOKEN), "kind of segment") == TOKEN else unit
    (configured,) = settled(lm, prepared(lm, name if isinstance(method, str) else method, settings, own))
    if configured.settings.get("erase", erase) is None:
        configured = Configured(configured.method, {**configured.settings, "erase": erase})
    explained = scale(str(kind))
    check_kind([configured], explained)
    return Variant(written, configured, explained, own)


def _setting(text: str, written: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise BadInput(f"{written!r} is not of the form method:key=value,key=value; for example lrp:rules=cp")
    return key.strip(), read_value(value.strip())


def described(methods: Sequence[Variant]) -> dict[str, dict[str, Any]]:
    """The settings of every method in plain Python, by its name."""
    return {
        v.name: {**{k: plain(x, -1) for k, x in v.method.settings.items()}, "kind": v.kind, "by": v.by} for v in methods
    }


# ------------------------------------------------------------------------------------------------------ answers


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What a method says of one prompt."""

    tokens: Float[np.ndarray, " t"]
    """Of every token that the model reads; 0 where it belongs to the template or to the answer."""
    segments: Float[np.ndarray, " s"]


@dataclass(frozen=True, eq=False)
class Case:
    """A prompt with an answer, and the log-probabilities of the answer for all copies of the prompt that were run."""

    lm: LanguageModel
    prompt: Encoded
    answer: Encoded
    by: By

    def __post_init__(self) -> None:
        if not self.answer.ids:
            raise BadInput("the answer is empty; pass an answer, or let the model generate more tokens")

    @cached_property
    def segments(self) -> list[Part]:
        """The segments of the prompt."""
        return segments(self.prompt.text, self.by, self.prompt.parts, self.prompt.offsets)

    @cached_property
    def owners(self) -> Int[np.ndarray, " p"]:
        """The segment of each token of the prompt; −1 for none."""
        own = owners(self.segments, self.prompt.offsets, self.prompt.special)
        return np.array([-1 if n is None else n for n in own])

    @cached_property
    def _view(self) -> Model:
        return self._explaining("log_probability")

    def _explaining(self, kind: Kind) -> Model:
        ids = torch.tensor(self.answer.ids, device=self.lm.device)
        return self.lm.answering(Answer(ids, self.answer.tokens, kind))

    @cached_property
    def batch(self) -> Batch:
        """Prompt and answer as one row, which remembers its erased copies. Only tokens of the prompt can be erased."""
        text = joined(self.prompt, self.answer, self.by, kept=True)
        return replace(self._view.batch([text]), memory=Memory(self._view))

    @cached_property
    def target(self) -> Targets:
        """The log-probability of the whole answer."""
        labels = torch.tensor([len(self.answer)], device=self.lm.device)
        return Targets(labels, None, "logit", "identity", read_from=self._view.read_from(self.batch))

    @property
    def view(self) -> Model:
        """The model, given this answer."""
        return self._view

    # ------------------------------------------------------------------------------------------------ erased prompts

    def values(self, where: Bool[Tensor, "m t"], erase: Erasure) -> Float[np.ndarray, " m"]:
        """The log-probability of the answer without the tokens of each mask."""
        rows = Erased(torch.zeros(len(where), dtype=torch.long, device=self.lm.device), where)
        return erased_values(self._view, self.batch, self.target, rows, erase).double().cpu().numpy()

    def without(self, erased: Bool[np.ndarray, "m s"]) -> Bool[Tensor, "m t"]:
        """Masks of the tokens of segments."""
        where = np.zeros((len(erased), self.batch.width), dtype=bool)
        where[:, : len(self.owners)] = erased[:, self.owners.clip(0)] & (self.owners >= 0)
        return torch.from_numpy(where).to(self.lm.device)

    # ------------------------------------------------------------------------------------------------ scores

    def scores(self, methods: Sequence[Variant]) -> list[Scores]:
        """Explain the answer by every method. Those of the same number and segments share their passes."""
        groups: dict[tuple[Kind, By | None], list[int]] = {}
        for number, one in enumerate(methods):
            groups.setdefault((one.kind, one.by), []).append(number)
        results: dict[int, Scores] = {}
        for (kind, by), group in groups.items():
            same = kind == "log_probability"
            view, memory = (self._view, self.batch.memory) if same else (self._explaining(kind), None)
            text = joined(self.prompt, self.answer, by, kept=True)
            result = scored(view, text, [methods[n].method for n in group], [len(self.answer)], memory)
            for number, attribution in zip(group, result.attributions, strict=True):
                row = check_finite(attribution.scores, methods[number].method, self.lm)[0]
                results[number] = self.summed(row.double().cpu().numpy())
        return [results[n] for n in range(len(methods))]

    def summed(self, tokens: Float[np.ndarray, " t"]) -> Scores:
        """The scores of tokens with those of segments, which are sums over their tokens."""
        kept = np.where(self.batch.content[0].cpu().numpy(), tokens, 0.0)
        own = self.owners >= 0
        totals = np.bincount(self.owners[own], kept[: len(self.owners)][own], minlength=len(self.segments))
        return Scores(kept, totals)

    def controls(self, seed: int = 0) -> dict[str, Scores]:
        """What can be said without the model: at random, the last segments first, or those most like the answer."""
        rng = np.random.default_rng([seed, *self.prompt.ids])
        content = self.batch.content[0].cpu().numpy()
        order, places = np.arange(1.0, len(self.segments) + 1), np.arange(1.0, len(content) + 1)
        shared = [len(_words(self.prompt.text[s.start : s.end]) & _words(self.answer.text)) for s in self.segments]
        return {
            "random": Scores(rng.normal(size=len(content)) * content, rng.normal(size=len(order))),
            "recency": Scores(places * content, order),
            "similarity": Scores(self._alike(len(content)) * content, np.array(shared, dtype=float)),
        }

    def _alike(self, width: int) -> Float[np.ndarray, " t"]:
        """1 for tokens of words that the answer has too."""
        same = [span for span in spans(self.prompt.text) if _words(self.prompt.text[slice(*span)]) & self._said]
        marks = np.zeros(width)
        own = owners([Part("", *span) for span in same], self.prompt.offsets, self.prompt.special)
        marks[: len(own)] = [n is not None for n in own]
        return marks

    @cached_property
    def _said(self) -> set[str]:
        return _words(self.answer.text)


CONTROLS = ("random", "recency", "similarity")
"""The rows that ignore the model, in every table of explained answers."""


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
