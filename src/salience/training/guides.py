"""Guides for training, from rationales or explanations: one weight per token of the model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args
from zlib import crc32

import numpy as np

from salience.core.ranking import top_share
from salience.core.target import Target
from salience.core.text import Encoded
from salience.core.types import Model
from salience.data.examples import Example, encode_examples
from salience.data.rationales import marked
from salience.errors import BadInput, choose
from salience.explanations.explainer import Configured, explain_all
from salience.explanations.explanation import Explanation, check_same_tokens

Form = Literal["binary", "positive", "signed"]
FORMS = get_args(Form)


def by_rationales(model: Model, examples: Sequence[Example]) -> list[Example]:
    """Add guides from human rationales: 1 on every token that overlaps a marked span."""
    encoded = encode_examples(model, examples)
    return [
        e if e.rationale is None else replace(e, guide=marked(e.rationale, tokens))
        for e, tokens in zip(examples, encoded, strict=True)
    ]


def by_explanations(
    model: Model,
    examples: Sequence[Example],
    explained: Mapping[str, Sequence[Explanation]] | Iterator[tuple[str, Sequence[Explanation]]],
    *,
    form: Form = "binary",
    share: float = 0.2,
) -> list[Example]:
    """Add guides from explanations of the same texts, by id.

    Each id has one explanation, or one per label in the model's order. Explanations must use this model's tokens; one
    made with another tokenizer is refused.
    """
    rows = dict(explained)
    if missing := [e.id for e in examples if e.id not in rows]:
        raise BadInput(
            f"{len(missing)} of {len(examples)} examples have no explanation, the first of them {missing[0]!r}. "
            "Explain the whole data set, with the same id column."
        )
    guided: list[Example] = []
    for example, tokens in zip(examples, encode_examples(model, examples), strict=True):
        guides = tuple(_guide(example, tokens, e, form, share) for e in rows[example.id])
        guided.append(replace(example, guide=guides[0] if len(guides) == 1 else guides))
    return guided


def by_teacher(
    teacher: Model,
    examples: Sequence[Example],
    method: Configured,
    *,
    form: Form = "binary",
    share: float = 0.2,
    labels: Sequence[int] | None = None,
) -> list[Example]:
    """Add guides from the explanations of a teacher: of the label of each text, or of its prediction if it has none.

    With ``labels``, columns of the teacher's logits, each text gets one guide for every one of them.
    """
    encoded = encode_examples(teacher, examples)
    guides: list[list[tuple[float, ...]]] = [[] for _ in examples]
    for label in (None,) if labels is None else labels:
        targets = [Target(e.single_label if label is None else label) for e in examples]
        for own, (x,) in zip(guides, explain_all(teacher, encoded, [method], targets), strict=True):
            own.append(shaped(x.scores, x.special, form, share))
    return [replace(e, guide=own[0] if labels is None else tuple(own)) for e, own in zip(examples, guides, strict=True)]


def _guide(example: Example, tokens: Encoded, e: Explanation, form: str, share: float) -> tuple[float, ...]:
    check_same_tokens(e, tokens, f"the explanation of {example.id!r}")
    return shaped(e.scores, tokens.special, form, share)


def shaped(scores: Sequence[float], special: Sequence[bool], form: str, share: float) -> tuple[float, ...]:
    """Turn scores into weights.

    ``binary`` gives 1 to the highest-scoring ``share`` of the tokens, ``positive`` keeps positive scores, and
    ``signed`` keeps all scores. Special tokens get 0.

    >>> shaped([9.0, 0.5, -2.0, 0.1, 0.3], [True, False, False, False, False], "binary", 0.5)
    (0.0, 1.0, 0.0, 0.0, 1.0)
    """
    kept = [0.0 if s else x for x, s in zip(scores, special, strict=True)]
    if choose(form, FORMS, "form") == "signed":
        return tuple(kept)
    if form == "positive":
        return tuple(max(0.0, x) for x in kept)
    if not 0 < share <= 1:
        raise BadInput(f"share={share} must be above 0 and at most 1; it is the fraction of tokens to mark")
    weights, content = np.zeros(len(scores)), ~np.array(special)
    weights[content] = top_share(np.array(scores)[content], share)
    return tuple(weights.tolist())


# ------------------------------------------------------------------------------------------------------ controls


def shuffled_guides(model: Model, examples: Sequence[Example], *, seed: int = 0) -> list[Example]:
    """Shuffle the weights of every guide over the tokens of its text: a control that explains nothing.

    Each text keeps its weights, so as many tokens are marked as before. Special tokens keep 0. The order depends on
    the seed and the text alone; with one guide per label, each is shuffled separately.
    """

    def shuffle(weights: Sequence[float], content: np.ndarray, rng: np.random.Generator) -> tuple[float, ...]:
        result = np.array(weights)
        result[content] = rng.permutation(result[content])
        return tuple(result.tolist())

    return _replaced(model, examples, shuffle, seed)


def uniform_guides(model: Model, examples: Sequence[Example]) -> list[Example]:
    """Replace every guide by the same weight on all tokens of its text: a control without any selection.

    A guide without a positive weight, as of a text in which people marked nothing, stays as it is.
    """

    def flatten(weights: Sequence[float], content: np.ndarray, _: np.random.Generator) -> tuple[float, ...]:
        return tuple(content.astype(float).tolist()) if max(weights, default=0) > 0 else tuple(weights)

    return _replaced(model, examples, flatten, 0)


def _replaced(
    model: Model,
    examples: Sequence[Example],
    change: Callable[[Sequence[float], np.ndarray, np.random.Generator], tuple[float, ...]],
    seed: int,
) -> list[Example]:
    """The examples with each of their guides changed, given which tokens are no special ones."""
    results: list[Example] = []
    for example, tokens in zip(examples, encode_examples(model, examples), strict=True):
        rng = np.random.default_rng([seed, crc32(repr(tokens.ids).encode())])
        content, guide = ~np.array(tokens.special), example.guide
        if guide and isinstance(guide[0], tuple):
            guide = tuple(change(one, content, rng) for one in guide)  # pyright: ignore
        elif guide:
            guide = change(guide, content, rng)  # pyright: ignore
        results.append(replace(example, guide=guide))
    return results
