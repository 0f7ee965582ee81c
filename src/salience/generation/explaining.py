"""Why these words: an answer, and how much each word of the source mattered to each word of it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from salience.core.target import Kind
from salience.core.text import Encoded, Span, members
from salience.errors import BadInput, choose
from salience.explanations.explainer import Configured, prepare
from salience.generation.answers import answers, spelled
from salience.generation.matrices import MATRIX_METHODS, Forced
from salience.models.loading import as_model
from salience.models.seq2seq import Seq2Seq

DEFAULT = "attention_x_relevance"


@dataclass(frozen=True, slots=True)
class AnswerTarget:
    """The explained number of each word of the answer."""

    kind: Kind = "log_probability"
    against: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerExplanation:
    """Scores of every source token for every token of an answer.

    ``matrix`` has one row per token of the answer, ``total`` is the sum over the answer, and ``gaps`` hold, per token
    of the answer, the difference between the scores and a property that they should have.
    """

    prompt: str
    answer: str
    method: str
    settings: Mapping[str, object]
    model: str
    target: AnswerTarget
    source_tokens: tuple[str, ...]
    source_offsets: tuple[Span, ...]
    answer_tokens: tuple[str, ...]
    answer_offsets: tuple[Span, ...]
    matrix: tuple[tuple[float, ...], ...]
    total: tuple[float, ...]
    gaps: Mapping[str, tuple[float, ...]]
    signed: bool
    additive: bool
    """Whether scores of tokens add up to those of words; if not, a word has the largest score of its tokens."""

    def to_dict(self) -> dict[str, Any]:
        """The explanation in plain Python."""
        return asdict(self)

    def words(self) -> tuple[list[str], list[str], list[list[float]]]:
        """Source words, answer words, and the matrix over them: a mean over the tokens of each word of the answer."""
        own = members(self.prompt, self.source_offsets, [a == b for a, b in self.source_offsets])
        theirs = members(self.answer, self.answer_offsets, [a == b for a, b in self.answer_offsets])
        joined = sum if self.additive else max
        matrix = [
            [sum(joined(self.matrix[t][s] for s in columns) for t in rows) / len(rows) for _, columns in own]
            for _, rows in theirs
        ]
        return [self.prompt[a:b] for (a, b), _ in own], [self.answer[a:b] for (a, b), _ in theirs], matrix


def explain_answer(
    model: object,
    text: str,
    *,
    answer: str | None = None,
    method: str | Sequence[str] = DEFAULT,
    kind: Kind = "log_probability",
    beam: int = 1,
    **settings: Any,
) -> list[AnswerExplanation]:
    """Explain which words of a source text made each word of the answer, one explanation per method.

    The answer is the model's own, or a given one. ``settings`` are those of the methods.
    """
    loaded = as_model(model)
    if not isinstance(loaded, Seq2Seq):
        raise BadInput(f"{loaded.name} does not answer with a text; use salience.explain for its prediction")
    methods = matrix_methods([method] if isinstance(method, str) else method, settings)
    encoded = loaded.encode([text])
    explained = _own(loaded, encoded, beam) if answer is None else loaded.encode_answer(answer)
    if not explained.ids:
        raise BadInput(f"the answer to {text!r} is empty; pass an answer" if answer is None else "the answer is empty")
    step = Forced.of(loaded, loaded.batch(encoded), loaded.answers([explained.ids]), kind)
    return [_explained(step, explained, one) for one in methods]


def _own(model: Seq2Seq, encoded: Sequence[Encoded], beam: int) -> Encoded:
    """The model's own answer. A token's place is from the end of the text of those before it to the end of its own."""
    (ids,) = answers(model, encoded, beam=beam)
    ends = [len(spelled(model, ids[: n + 1])) for n in range(len(ids))]
    tokens = tuple(str(model.tokenizer.id_to_token(i)) for i in ids)
    offsets = tuple(zip([0, *ends[:-1]], ends, strict=True))
    return Encoded(spelled(model, ids), ids, tokens, offsets, (False,) * len(ids))


def matrix_methods(names: Sequence[str], settings: Mapping[str, Any]) -> list[Configured]:
    """Look up methods by name, each with its settings, which are checked."""
    by_name = {function.__name__: function for function in MATRIX_METHODS}
    return prepare([by_name[choose(name, by_name, "method", "an encoder-decoder")] for name in names], settings)


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
    )
