"""Why these words: an answer, and how much each token of the prompt and of the answer so far mattered to each token."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch

from salience.core.prompts import Passage, Prompt
from salience.core.settings import settings_of
from salience.core.target import Kind
from salience.core.text import Encoded, Span, numbers
from salience.core.types import Attribution, Model
from salience.errors import BadInput, choose
from salience.explanations.explainer import (
    AnyMethod,
    Configured,
    as_list,
    check_finite,
    default_method,
    plain,
    prepare,
    scale,
    settled,
)
from salience.explanations.explanation import SUMS
from salience.generation.citing import context_cite
from salience.generation.explanation import AnswerExplanation, AnswerTarget
from salience.generation.hops import check_passed_on
from salience.generation.matrices import MATRIX_METHODS
from salience.generation.scoring import scored
from salience.generation.segments import By, owners, pattern
from salience.generation.segments import segments as segmented
from salience.generation.translating import TRANSLATION, explain_translations
from salience.methods import METHODS, attention_x_relevance, diff_mask, output_relevance, selection
from salience.models.huggingface.adapter import HuggingFace
from salience.models.huggingface.answering import Answer
from salience.models.huggingface.encoder_decoder import EncoderDecoder
from salience.models.loading import as_model
from salience.models.seq2seq import Seq2Seq

GENERATED = 32
"""The most tokens of an answer, unless another number is named."""

Per = Literal["token", "answer"]
Rule = By | re.Pattern[str]
"""What segments are: a kind, or the matches of a regular expression."""

LanguageModel = HuggingFace | EncoderDecoder
"""A model that answers with a text: a causal language model, or an encoder-decoder."""

ANSWER_METHODS: tuple[Callable[..., Any], ...] = (
    *(m for m in METHODS if m not in (output_relevance, attention_x_relevance, diff_mask, selection)),
    context_cite,
)
"""All methods that explain the answer of a language model."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked about answers: the methods, the explained number, and the form of the result."""

    methods: Sequence[Configured]
    kind: Kind = "log_probability"
    by: Rule | None = None
    per: Per = "token"
    through_answer: bool = False

    def __post_init__(self) -> None:
        choose(self.per, get_args(Per), "per")
        if isinstance(self.by, str):
            choose(self.by, get_args(By), "kind of segment")
        if self.through_answer and self.per == "answer":
            raise BadInput(
                "through_answer needs a score for every token of the answer; use per='token', without against_answer"
            )
        for one in self.methods if self.through_answer else ():
            check_passed_on(one.method.__name__, one.settings)
        check_kind(self.methods, self.kind)


def check_kind(methods: Sequence[Configured], kind: Kind) -> None:
    """Raise if context_cite is asked for another number than a log-probability, of which it fits the log-odds."""
    if kind != "log_probability" and any(m.method is context_cite for m in methods):
        raise BadInput("context_cite explains the log-probability of the answer; leave out kind")


def explain_answer(
    model: object,
    prompt: object,
    method: AnyMethod | None = None,
    *,
    answer: str | Sequence[int] | None = None,
    against_answer: str | None = None,
    context: Sequence[str | Passage] | None = None,
    generate: int = GENERATED,
    generation: Mapping[str, Any] | None = None,
    by: By | None = None,
    segments: str | None = None,
    per: Per = "token",
    kind: str = "log_probability",
    through_answer: bool = False,
    **settings: Any,
) -> AnswerExplanation:
    """Explain which parts of a prompt made a language model say its answer, or a given one.

    ``prompt`` is a text, a list of messages (rendered by the model's own chat template), token ids, or a Prompt;
    ``context`` are passages that the prompt is a question about. The answer is generated, greedily unless
    ``generation`` names other settings of transformers' ``generate``, and of at most ``generate`` tokens; or it is
    given, as text or token ids. With ``against_answer``, the scores say why this answer and not that one.

    ``per="token"`` scores every token of the answer, ``per="answer"`` only the whole, which is cheaper. With ``by``,
    methods that erase parts of the prompt erase such segments, and the result lists their scores; with ``segments``,
    the matches of that regular expression. ``through_answer`` passes the credit of earlier answer tokens on to the
    prompt. Other ``settings`` are those of the method.

    >>> explain_answer(model, "The capital of France is").by("word")                     # doctest: +SKIP
    """
    (result,) = explain_answers(
        model,
        [prompt if context is None else Prompt.with_context(_question(prompt), context)],
        method,
        answers=None if answer is None else [answer],
        against_answers=None if against_answer is None else [against_answer],
        generate=generate,
        generation=generation,
        by=by,
        segments=segments,
        per=per,
        kind=kind,
        through_answer=through_answer,
        **settings,
    )
    return result


def explain_answers(
    model: object,
    prompts: Sequence[object],
    method: AnyMethod | Sequence[AnyMethod] | None = None,
    *,
    answers: Sequence[str | Sequence[int]] | None = None,
    against_answers: Sequence[str] | None = None,
    generate: int = GENERATED,
    generation: Mapping[str, Any] | None = None,
    by: By | None = None,
    segments: str | None = None,
    per: Per = "token",
    kind: str = "log_probability",
    through_answer: bool = False,
    **settings: Any,
) -> list[AnswerExplanation]:
    """Explain the answers to several prompts by one or more methods; ordered by prompt, then by method.

    See :func:`explain_answer`.
    """
    known = as_model(model)
    request = requested(
        known,
        method,
        settings,
        kind=kind,
        by=by,
        segments=segments,
        per="answer" if against_answers is not None else per,
        through_answer=through_answer,
    )
    rows = explain_each_answer(known, prompts, request, answers, against_answers, generate, generation)
    return [result for row in rows for result in row]


def requested(
    model: Model,
    method: AnyMethod | Sequence[AnyMethod] | None,
    settings: Mapping[str, Any],
    *,
    kind: str = "log_probability",
    by: By | None = None,
    segments: str | None = None,
    per: Per = "token",
    through_answer: bool = False,
) -> Request:
    """Check what is asked about the answers of a model."""
    if by is not None and segments is not None:
        raise BadInput("choose one of by, a kind of segment, and segments, a regular expression")
    rule = by if segments is None else pattern(segments)
    return Request(prepared(model, method, settings, rule), scale(kind), rule, per, through_answer)


def explain_each_answer(
    model: Model,
    prompts: Sequence[object],
    request: Request,
    answers: Sequence[str | Sequence[int]] | None = None,
    against_answers: Sequence[str] | None = None,
    generate: int = GENERATED,
    generation: Mapping[str, Any] | None = None,
) -> Iterator[list[AnswerExplanation]]:
    """Yield the explanations of each answer by every method. All prompts and answers are checked before the first."""
    _check_counts(prompts, answers, against_answers)
    if isinstance(model, Seq2Seq):
        results = explain_translations(model, prompts, answers, request, generation)
        count = len(request.methods)
        yield from (results[at : at + count] for at in range(0, len(results), count))
        return
    lm = as_language_model(model)
    encoded = [lm.encode_prompt(Prompt.of(prompt)) for prompt in prompts]
    for one in encoded:
        check_segments(one, request)
    recorded: Mapping[str, object] = {}
    if answers is not None:
        given = [lm.encode_answer(e, answer) for e, answer in zip(encoded, answers, strict=True)]
    else:
        how = {"max_new_tokens": generate, **(generation or {})}
        given, recorded = lm.generate(encoded, **how), lm.generation_settings(**how)
    others = [None] * len(given) if against_answers is None else list(map(lm.encode_answer, encoded, against_answers))
    request = replace(request, methods=settled(lm, request.methods))
    for row in zip(encoded, given, others, strict=True):
        yield [replace(result, generation=recorded) for result in explain_encoded(lm, *row, request)]


def check_segments(prompt: Encoded, request: Request) -> None:
    """Raise if the prompt has no segments of the kind that is asked for."""
    if request.by is not None:
        segmented(prompt.text, request.by, prompt.parts)


def _question(prompt: object) -> str:
    if isinstance(prompt, str):
        return prompt
    raise BadInput("context is for a question that is a plain text; put the passages into the messages of the chat")


def _check_counts(prompts: Sequence[object], *answers: Sequence[object] | None) -> None:
    for given in answers:
        if given is not None and len(given) != len(prompts):
            raise BadInput(f"there are {len(given)} answers for {len(prompts)} prompts; pass one for each")


def as_language_model(model: Model) -> LanguageModel:
    """Return the model, or refuse it if it does not answer with a text."""
    if isinstance(model, EncoderDecoder) or (isinstance(model, HuggingFace) and model.generates):
        return model
    raise BadInput(f"{model.name} does not answer with a text; use a language model, or explain its prediction")


def prepared(
    model: Model, method: AnyMethod | Sequence[AnyMethod] | None, settings: Mapping[str, Any], by: Rule | None
) -> list[Configured]:
    """Look up methods by name, each with its settings, which are checked.

    Methods that erase parts of the prompt erase whole segments, if there are such and nothing else is asked for.
    """
    known, default = _known(model)
    by_name = {m.__name__: m for m in known}
    where = "an encoder-decoder" if isinstance(model, Seq2Seq) else "an answer"
    chosen = [
        by_name[choose(m, by_name, "method", where)] if isinstance(m, str) else m for m in as_list(method or default)
    ]
    methods = prepare(chosen, settings)
    if by is None or "unit" in settings:
        return methods
    return [
        Configured(m.method, {**m.settings, "unit": "segment"}) if "unit" in settings_of(m.method) else m
        for m in methods
    ]


def _known(model: Model) -> tuple[Sequence[Callable[..., Any]], str]:
    """The methods that explain the answers of a model, and the one that is used unless another is named."""
    return (MATRIX_METHODS, TRANSLATION) if isinstance(model, Seq2Seq) else (ANSWER_METHODS, default_method(model))


def explain_encoded(
    lm: LanguageModel, prompt: Encoded, answer: Encoded, against: Encoded | None, request: Request
) -> list[AnswerExplanation]:
    """Explain one answer by every method."""
    if not answer.ids:
        raise BadInput("the answer is empty; pass an answer, or let the model generate more tokens")
    results = _attributions(lm, prompt, answer, request, fixed=against is not None)
    others = None if against is None else _attributions(lm, prompt, against, request, fixed=True)
    made = partial(_explanation, lm, prompt, answer, request)
    plain_results = [made(m, *result) for m, result in zip(request.methods, results, strict=True)]
    if against is None or others is None:
        return [e.through_answer() if request.through_answer else e for e in plain_results]
    subtracted = [made(m, *result) for m, result in zip(request.methods, others, strict=True)]
    return [_contrasted(a, b, against.text) for a, b in zip(plain_results, subtracted, strict=True)]


def _attributions(
    lm: LanguageModel, prompt: Encoded, answer: Encoded, request: Request, *, fixed: bool
) -> list[tuple[torch.Tensor, Attribution]]:
    """f of each token, and the scores of every method. A token cannot be deleted from the answer that is explained."""
    view = lm.answering(Answer(torch.tensor(answer.ids, device=lm.device), answer.tokens, request.kind))
    steps = range(len(answer) + 1) if request.per == "token" else [len(answer)]
    results: dict[int, tuple[torch.Tensor, Attribution]] = {}
    for kept in (True, False):
        group = [n for n, m in enumerate(request.methods) if kept == (fixed or m.settings.get("erase") == "delete")]
        if group:
            text = joined(prompt, answer, request.by, kept=kept)
            result = scored(view, text, [request.methods[n] for n in group], steps)
            results |= {n: (result.values, a) for n, a in zip(group, result.attributions, strict=True)}
    return [results[n] for n in range(len(request.methods))]


def joined(prompt: Encoded, answer: Encoded, by: Rule | None, *, kept: bool = False) -> Encoded:
    """Prompt and answer as one text without the last token of the answer; the tokens of an answer that is ``kept`` are
    never erased.

    The answer of an encoder-decoder is a text of its own, in the segment of what the decoder starts with.
    """
    said, separate = len(answer) - 1, prompt.segments is not None
    text = f"{prompt.text}\n" if separate else prompt.text
    units = None
    if by is not None:
        owned = owners(segmented(prompt.text, by, prompt.parts, prompt.offsets), prompt.offsets, prompt.special)
        units = (*(-1 if n is None else n for n in owned), *[-1] * said)
    return Encoded(
        text=text + answer.text,
        ids=prompt.ids + answer.ids[:-1],
        tokens=prompt.tokens + answer.tokens[:-1],
        offsets=(*prompt.offsets, *_moved(answer.offsets[:-1], len(text))),
        special=(*prompt.special, *(kept or special for special in answer.special[:-1])),
        segments=prompt.segments + prompt.segments[-1:] * said if prompt.segments is not None else None,
        pair_at=len(text) if separate else None,
        parts=prompt.parts,
        units=units,
    )


def _moved(offsets: Sequence[Span], start: int) -> list[Span]:
    """Offsets into a text, as those into a longer one in which it starts at ``start``."""
    return [(a + start, b + start) for a, b in offsets]


def _explanation(
    lm: LanguageModel,
    prompt: Encoded,
    answer: Encoded,
    request: Request,
    one: Configured,
    values: torch.Tensor,
    result: Attribution,
) -> AnswerExplanation:
    text = joined(prompt, answer, None)
    scores = check_finite(result.scores, one, lm).cpu().float().tolist()
    each = len(answer) if request.per == "token" else 0
    by_word = one.settings.get("unit") == "word"
    words = numbers(text.text, text.offsets, text.special) if by_word else range(len(text))
    return AnswerExplanation(
        prompt=prompt.text,
        answer=answer.text,
        method=one.method.__name__,
        settings={name: plain(value, -1) for name, value in {**one.settings, **result.settings}.items()},
        model=lm.name,
        target=AnswerTarget(request.kind),
        source_tokens=text.tokens,
        source_offsets=(*prompt.offsets, *_moved(answer.offsets[:-1], len(prompt.text))),
        answer_tokens=answer.tokens,
        answer_offsets=answer.offsets,
        matrix=tuple(_row(row, len(prompt) + t, words) for t, row in enumerate(scores[:each])),
        total=tuple(scores[-1]),
        gaps={name: tuple(gap[:each].tolist()) for name, gap in result.gaps.items()} if each else {},
        signed=result.signed is not False,
        prompt_tokens=len(prompt),
        source_special=text.special,
        parts=prompt.parts,
        values=tuple(values[:each].tolist()),
        total_gaps={name: float(gap[-1]) for name, gap in result.gaps.items()},
        rule=request.by if isinstance(request.by, str) else None,
        expression=request.by.pattern if isinstance(request.by, re.Pattern) else None,
        answer_ids=answer.ids,
    )


def _row(scores: Sequence[float], end: int, words: Sequence[int]) -> tuple[float | None, ...]:
    """Scores of one token of the answer; it and what follows it had no part in it.

    The score of a word that was erased as a whole is divided equally among its tokens; inside of that word, among those
    of its tokens that came before.
    """
    seen = list(scores[:end])
    if end < len(scores) and words[end] >= 0 and (begun := [i for i in range(end) if words[i] == words[end]]):
        later = sum(score for score, word in zip(scores[end:], words[end:], strict=True) if word == words[end])
        for i in begun:
            seen[i] += later / len(begun)
    return (*seen, *[None] * (len(scores) - end))


def _contrasted(one: AnswerExplanation, other: AnswerExplanation, against: str) -> AnswerExplanation:
    """The scores of the prompt for one answer, minus those for another, and so their sums; not 1 − R² or a share."""
    if not one.signed:
        raise BadInput(
            f"{one.method} only measures importance, so its scores for two answers cannot be subtracted; use a signed "
            "method such as input_x_gradient, lrp or occlusion"
        )
    size = one.prompt_tokens
    return replace(
        one,
        target=AnswerTarget(one.target.kind, against),
        total=tuple(a - b for a, b in zip(one.total[:size], other.total[:size], strict=True)),
        source_tokens=one.source_tokens[:size],
        source_offsets=one.source_offsets[:size],
        source_special=one.source_special[:size],
        total_gaps={name: one.total_gaps[name] - other.total_gaps[name] for name in SUMS if name in one.total_gaps},
    )
