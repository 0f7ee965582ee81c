"""Which tokens of an answer depend on the context, and on which parts of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from salience.core.prompts import Part, Passage, Prompt
from salience.core.text import Encoded, Span
from salience.errors import BadInput
from salience.explanations.explainer import AnyMethod, Configured, as_list, check_finite, plain, settled
from salience.generation.citing import context_cite
from salience.generation.explaining import GENERATED, LanguageModel, as_language_model, joined, prepared
from salience.generation.scoring import scored
from salience.generation.segments import owners
from salience.models.huggingface.answering import Answer
from salience.models.loading import as_model


@dataclass(frozen=True, slots=True)
class Cue:
    """A token of the context that an answer's token depends on."""

    token: str
    start: int
    end: int
    """Its span of characters in the prompt."""
    score: float


@dataclass(frozen=True, slots=True)
class Dependent:
    """A token of the answer that depends on the context."""

    position: int
    """Its index in the answer."""
    token: str
    divergence: float
    """KL(p with context ‖ p without), in nats."""
    instead: str
    """What the model would say there without the context."""
    cues: tuple[Cue, ...]
    """Where in the context the preference for this token comes from, the strongest first."""
    scores: tuple[float, ...]
    """One score per token of the prompt, of the contrast between the token and the one instead."""


@dataclass(frozen=True, slots=True)
class ContextDependence:
    """How an answer to a question depends on the context that was given with it."""

    prompt: str
    answer: str
    model: str
    method: str
    settings: Mapping[str, object]
    answer_tokens: tuple[str, ...]
    answer_offsets: tuple[Span, ...]
    """The spans of these tokens in the answer."""
    prompt_tokens: tuple[str, ...]
    divergences: tuple[float, ...]
    """KL(p with context ‖ p without) of every token of the answer."""
    threshold: float
    """The mean of the divergences plus their standard deviation; tokens that reach it depend on the context."""
    dependent: tuple[Dependent, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.dependent)} of {len(self.answer_tokens)} tokens depend on the context"]
        for one in self.dependent:
            cues = ", ".join(f"{self.prompt[c.start : c.end]!r} {c.score:.3f}" for c in one.cues)
            lines.append(
                f"{one.token!r} (KL {one.divergence:.2f}; without context {one.instead!r}): {cues or 'no part of it'}"
            )
        return "\n".join(lines)


def context_dependence(
    model: object,
    question: str,
    context: Sequence[str | Passage],
    answer: str | Sequence[int] | None = None,
    method: AnyMethod | None = None,
    *,
    generate: int = GENERATED,
    **settings: Any,
) -> ContextDependence:
    """Find the tokens of an answer that depend on the context, and for each the tokens of the context that it rests on.

    (1) Each token's distribution over the vocabulary with the context, p, is compared with that without, q, for the
    same answer so far: KL(p ‖ q). Those of at least the mean plus one standard deviation depend on it. (2) For each
    of these, the contrast log p(token) − log p(instead) is explained, where ``instead`` is the most likely token under
    q. Cues are the tokens of the context whose scores are above their mean plus one standard deviation. There are none
    where the model would say the same token without the context.

    Without an ``answer``, the model's own of at most ``generate`` tokens is used. Settings are those of the method.

    Paper: Sarti et al. 2024 (PECoRe), arXiv:2310.01188

    >>> print(context_dependence(model, "Where does Anna live?", ["Anna lives in Oslo."]))  # doctest: +SKIP
    """
    lm = as_language_model(as_model(model))
    if method is not None and len(as_list(method)) != 1:
        raise BadInput("the dependence on a context is explained by one method; call this once for each")
    (configured,) = settled(lm, prepared(lm, method, settings, None))
    if configured.method is context_cite:
        raise BadInput(
            "context_cite explains the log-probability of an answer, and cues are those of a contrast of two tokens; "
            "use another method such as lrp or occlusion"
        )
    prompt, bare = map(lm.encode_prompt, (Prompt.with_context(question, context), _alone(question)))
    said = lm.encode_answer(prompt, answer) if answer is not None else lm.generate([prompt], max_new_tokens=generate)[0]
    if not said.ids:
        raise BadInput("the answer is empty; pass an answer, or let the model generate more tokens")
    return _dependence(lm, prompt, bare, said, configured)


def _dependence(
    lm: LanguageModel, prompt: Encoded, bare: Encoded, said: Encoded, configured: Configured
) -> ContextDependence:
    """How what was said depends on the difference between a prompt with context and the bare question."""
    p, q = (_log_probabilities(lm, one, said) for one in (prompt, bare))
    divergences = (p.exp() * (p - q)).sum(1).clamp(min=0).cpu().numpy()
    instead = q.argmax(1)
    steps = np.flatnonzero(above(divergences)).tolist()
    scores = _contrasts(lm, prompt, said, instead, configured, steps)
    return ContextDependence(
        prompt=prompt.text,
        answer=said.text,
        model=lm.name,
        method=configured.method.__name__,
        settings={name: plain(value, -1) for name, value in configured.settings.items()},
        answer_tokens=said.tokens,
        answer_offsets=said.offsets,
        prompt_tokens=prompt.tokens,
        divergences=tuple(divergences.tolist()),
        threshold=_threshold(divergences),
        dependent=tuple(
            Dependent(
                position=t,
                token=said.tokens[t],
                divergence=float(divergences[t]),
                instead=lm.spell([int(instead[t])])[0],
                cues=_cues(prompt, row),
                scores=tuple(row.tolist()),
            )
            for t, row in zip(steps, scores, strict=True)
        ),
    )


def _alone(question: str) -> Prompt:
    """The question without its context; as a part of its own, it becomes a chat where one with context does."""
    text = question.strip()
    return Prompt(text=text, parts=(Part("question", 0, len(text), "question"),))


def above(values: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Which positive values are at least their mean plus one standard deviation; of one or two, that is the largest.

    >>> above(np.array([0.0, 0.0, 0.0, 1.0])).tolist()
    [False, False, False, True]
    """
    threshold = _threshold(values)
    return (values > 0) & ((values > threshold) | np.isclose(values, threshold, rtol=1e-9, atol=0.0))


def _threshold(values: Float[np.ndarray, " n"]) -> float:
    return float(values.mean() + values.std())


def _log_probabilities(lm: LanguageModel, prompt: Encoded, answer: Encoded) -> Float[Tensor, "g v"]:
    """The distribution of every token of the answer, given the prompt and the answer so far."""
    return lm.distributions(lm.batch([joined(prompt, answer, None)]), len(answer))[0].double()


def _contrasts(
    lm: LanguageModel, prompt: Encoded, answer: Encoded, instead: Tensor, method: Configured, steps: Sequence[int]
) -> Float[np.ndarray, "n p"]:
    """For each step, the scores of the prompt's tokens for log p(token) − log p(instead)."""
    if not steps:
        return np.zeros((0, len(prompt)))
    ids = torch.tensor(answer.ids, device=lm.device)
    view = lm.answering(Answer(ids, answer.tokens, "log_probability", against=instead))
    (result,) = scored(view, joined(prompt, answer, None, kept=True), [method], steps).attributions
    return check_finite(result.scores, method, lm)[:, : len(prompt)].double().cpu().numpy()


def _cues(prompt: Encoded, scores: Float[np.ndarray, " p"]) -> tuple[Cue, ...]:
    """The tokens of the context whose scores are above the mean plus one standard deviation of all of them."""
    documents = [part for part in prompt.parts if part.kind == "document"]
    inside = [n for n, owner in enumerate(owners(documents, prompt.offsets, prompt.special)) if owner is not None]
    chosen = [n for n, marked in zip(inside, above(scores[inside]), strict=True) if marked]
    return tuple(
        Cue(prompt.tokens[n], *prompt.offsets[n], float(scores[n])) for n in sorted(chosen, key=lambda n: -scores[n])
    )
