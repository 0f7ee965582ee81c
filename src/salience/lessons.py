"""Training examples, and explanations of them turned into guides: one weight per token, as the model reads the text."""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from salience.data import Reader, Rejected, Source, shards
from salience.errors import BadInput, DoubtfulRationale, TruncatedText, choose
from salience.explanation import Explanation
from salience.types import Encoded, Model, Span, Text

Label = str | int | float | Sequence[str | int] | None
Form = Literal["binary", "positive", "signed"]
FORMS = get_args(Form)


@dataclass(frozen=True, slots=True)
class Example:
    """A text to learn from. Without a label it teaches where to look alone.

    ``rationale`` are the character spans that a person has marked. ``guide`` are weights of the tokens as one model
    reads them, or one such row for every label.
    """

    id: str
    text: Text
    label: Label = None
    rationale: tuple[Span, ...] | None = None
    guide: tuple[float, ...] | tuple[tuple[float, ...], ...] | None = None


def examples(source: Source, *, limit: int | None = None, max_rejected: float = 0.0) -> list[Example]:
    """All rows of a source, with its label and rationale columns. Bad rows stop it, unless a share is let pass."""
    found: list[Example] = []
    bad: list[Rejected] = []
    with Reader(source) as reader:
        for shard in shards(source, limit=limit):
            for row in reader.read(shard):
                if isinstance(row, Rejected):
                    bad.append(row)
                else:
                    found.append(Example(row.id, row.text, row.label, row.rationale))
    if len(bad) > max_rejected * (len(bad) + len(found)) or not found:
        first = bad[0]
        raise BadInput(
            f"{len(bad)} of {len(bad) + len(found)} rows of {source.name} cannot be used; the first is line "
            f"{first.line} of {first.file}: {first.reason}"
        )
    ((name, times),) = Counter(e.id for e in found).most_common(1)
    if times > 1:
        raise BadInput(f"{source.name} has {times} rows of id {name!r}; ids tell texts apart")
    if source.spans == "characters":
        _warn_of_cut_words(found, source.name)
    return found


def _warn_of_cut_words(given: Sequence[Example], name: str) -> None:
    """Spans that count words lie within the characters of their text, too, and would be taken for those."""
    cut = [
        any(0 < i < len(text) and _cased(text[i - 1]) and _cased(text[i]) for i in span)
        for e in given
        for text in ([e.text] if isinstance(e.text, str) else ())
        for span in e.rationale or ()
    ]
    if 2 * sum(cut) > len(cut):
        warnings.warn(
            f"{sum(cut)} of {len(cut)} rationale spans of {name} begin or end within a word; if they count words and "
            "not characters, say so (--spans words)",
            DoubtfulRationale,
            stacklevel=3,
        )


def _cased(character: str) -> bool:
    """Letters that have a case are of scripts that part words by spaces."""
    return character.lower() != character.upper()


def labels_in(given: Sequence[Example], name: str) -> list[str] | int:
    """The names of the labels in order, or how many there are where they are numbers from 0 on."""
    found = {label for e in given if (label := e.label) is not None}
    if len(found) < 2:
        raise BadInput(f"all texts of {name} have the label {', '.join(map(repr, found))}; nothing is learnt")
    if all(isinstance(label, int) for label in found):
        numbers = sorted(int(label) for label in found)  # pyright: ignore
        if numbers[0] < 0:
            raise BadInput(f"labels are names, or numbers from 0 on; {name} has {numbers[0]}")
        return numbers[-1] + 1
    if all(isinstance(label, str) for label in found):
        return sorted(map(str, found))
    raise BadInput("a classifier's labels are all names or all whole numbers")


def read(model: Model, given: Sequence[Example]) -> list[Encoded]:
    """The texts as the model reads them. Those that are too long are cut without a word: they come every epoch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncatedText)
        return model.encode([e.text for e in given])


def by_rationales(model: Model, given: Sequence[Example]) -> list[Example]:
    """Guided by what people have marked: 1 on every token that a span touches."""
    encoded = read(model, given)
    return [
        e if e.rationale is None else replace(e, guide=marked(e.rationale, seen))
        for e, seen in zip(given, encoded, strict=True)
    ]


def marked(spans: Iterable[Span], encoded: Encoded) -> tuple[float, ...]:
    """1 for the tokens that any of the spans touches.

    >>> marked([(2, 6)], Encoded("a fine", (1, 2), ("a", "fine"), ((0, 1), (2, 6)), (False, False)))
    (0.0, 1.0)
    """
    marks = list(spans)
    for start, end in marks:
        if not 0 <= start < end <= len(encoded.text):
            raise BadInput(
                f"the rationale {start} to {end} lies outside its text of {len(encoded.text)} characters: "
                f"{encoded.text[:60]!r}"
            )
    return tuple(
        float(not special and any(a < end and start < b for start, end in marks))
        for (a, b), special in zip(encoded.offsets, encoded.special, strict=True)
    )


def by_explanations(
    model: Model,
    given: Sequence[Example],
    explained: Mapping[str, Sequence[Explanation]] | Iterator[tuple[str, Sequence[Explanation]]],
    *,
    form: Form = "binary",
    share: float = 0.2,
) -> list[Example]:
    """Guided by explanations of the same texts, by id: one each, or one for every label in the model's order.

    They must be of the tokens that this model reads: an explanation for another tokenizer is refused.
    """
    rows = dict(explained)
    if missing := [e.id for e in given if e.id not in rows]:
        raise BadInput(
            f"{len(missing)} of {len(given)} examples have no explanation, the first of them {missing[0]!r}; explain "
            "the data set to its end, with the same id column"
        )
    found: list[Example] = []
    for example, seen in zip(given, read(model, given), strict=True):
        guides = tuple(_guide(example, seen, e, form, share) for e in rows[example.id])
        found.append(replace(example, guide=guides[0] if len(guides) == 1 else guides))
    return found


def _guide(example: Example, seen: Encoded, e: Explanation, form: str, share: float) -> tuple[float, ...]:
    if e.text != seen.text:
        raise BadInput(
            f"the explanation of {example.id!r} is of another text: {e.text[:60]!r}, not {seen.text[:60]!r}; explain "
            "this data set again"
        )
    if e.tokens != seen.tokens:
        raise BadInput(
            f"the explanation of {example.id!r} was made for another tokenizer: its tokens begin "
            f"{' '.join(e.tokens[:6])!r}, and this model's {' '.join(seen.tokens[:6])!r}; explain with a model that "
            "shares this tokenizer"
        )
    return shaped(e.scores, seen.special, form, share)


def shaped(scores: Sequence[float], special: Sequence[bool], form: str, share: float) -> tuple[float, ...]:
    """Scores as weights: 1 for the highest ``share`` of the text's tokens, or the positive scores, or all as they are.

    >>> shaped([9.0, 0.5, -2.0, 0.1, 0.3], [True, False, False, False, False], "binary", 0.5)
    (0.0, 1.0, 0.0, 0.0, 1.0)
    """
    kept = [0.0 if s else x for x, s in zip(scores, special, strict=True)]
    if choose(form, FORMS, "form") == "signed":
        return tuple(kept)
    if form == "positive":
        return tuple(max(0.0, x) for x in kept)
    if not 0 < share <= 1:
        raise BadInput(f"share={share} is not above 0 and at most 1; it is the part of the tokens that is marked")
    content = [i for i, s in enumerate(special) if not s]
    count = max(1, round(share * len(content)))
    top = set(sorted(content, key=lambda i: -scores[i])[:count])
    return tuple(float(i in top) for i in range(len(kept)))
