"""Answers of recurrent encoder-decoders: how much each word of the source mattered to each word of the answer."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from salience.core.text import Encoded
from salience.errors import BadInput
from salience.explanations.explainer import Configured
from salience.generation.answers import answers as answered
from salience.generation.answers import spelled
from salience.generation.explanation import AnswerExplanation, AnswerTarget
from salience.generation.matrices import Forced
from salience.models.seq2seq import Seq2Seq

if TYPE_CHECKING:
    from salience.generation.explaining import Request

TRANSLATION = "attention_x_relevance"


def explain_translations(
    model: Seq2Seq,
    sources: Sequence[object],
    answers: Sequence[object] | None,
    request: "Request",
    generation: Mapping[str, Any] | None,
) -> list[AnswerExplanation]:
    """Explain the answer to every source by every method. The only setting of generation is ``num_beams``."""
    if request.per == "answer" or request.through_answer:
        raise BadInput(f"{model.name} is a recurrent encoder-decoder: leave out per, through_answer and against_answer")
    beams = dict(generation or {})
    beam = beams.pop("num_beams", 1)
    if beams:
        raise BadInput(f"{model.name} has no setting {next(iter(beams))!r} of generation; it has num_beams")
    results: list[AnswerExplanation] = []
    for number, source in enumerate(sources):
        if not isinstance(source, str):
            raise BadInput(f"{model.name} reads plain texts, not a chat or token ids")
        encoded = model.encode([source])
        given = _given(model, answers, number) if answers is not None else _own(model, encoded, beam)
        if not given.ids:
            raise BadInput("the answer is empty" if answers else f"the answer to {source!r} is empty; pass an answer")
        step = Forced.of(model, model.batch(encoded), model.answers([given.ids]), request.kind)
        results += [_explained(step, given, one) for one in request.methods]
    return results


def _given(model: Seq2Seq, answers: Sequence[object], number: int) -> Encoded:
    answer = answers[number]
    if not isinstance(answer, str):
        raise BadInput(f"{model.name} takes answers as text, not as token ids")
    return model.encode_answer(answer)


def _own(model: Seq2Seq, encoded: Sequence[Encoded], beam: int) -> Encoded:
    """The model's own answer. A token's place is from the end of the text of those before it to the end of its own."""
    (ids,) = answered(model, encoded, beam=beam)
    ends = [len(spelled(model, ids[: n + 1])) for n in range(len(ids))]
    tokens = tuple(str(model.tokenizer.id_to_token(i)) for i in ids)
    offsets = tuple(zip([0, *ends[:-1]], ends, strict=True))
    return Encoded(spelled(model, ids), ids, tokens, offsets, (False,) * len(ids))


def _explained(step: Forced, answer: Encoded, one: Configured) -> AnswerExplanation:
    source, count = step.batch.encoded[0], len(answer)
    result = one.method(step, **one.settings)
    matrix = result.scores[:count].double().cpu()
    return AnswerExplanation(
        prompt=source.text,
        answer=answer.text,
        method=one.method.__name__,
        settings={**one.settings, **result.settings},
        model=step.model.name,
        target=AnswerTarget(step.kind),
        source_tokens=source.tokens,
        source_offsets=source.offsets,
        answer_tokens=answer.tokens,
        answer_offsets=answer.offsets,
        matrix=tuple(tuple(row) for row in matrix.tolist()),
        total=tuple(matrix.sum(0).tolist()),
        gaps={name: tuple(values[:count].tolist()) for name, values in result.gaps.items()},
        signed=result.signed,
        additive=result.additive,
        prompt_tokens=len(source),
        source_special=source.special,
    )
