"""Labelled texts in memory, with human rationales."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from salience.core.text import Encoded, Encodes, Span, Text
from salience.data.rows import all_rows
from salience.data.values import Rejected, Source
from salience.errors import BadInput, DoubtfulRationale, TruncatedText

Item = TypeVar("Item")


Label = str | int | float | Sequence[str | int] | None


@dataclass(frozen=True, slots=True)
class Example:
    """A text with its label and explanation, for training and evaluation.

    ``rationale`` holds character spans marked by a person. ``guide`` holds one weight per token of a model, or one such
    row per label. An example without a label contributes only to penalties on the guide.
    """

    id: str
    text: Text
    label: Label = None
    rationale: tuple[Span, ...] | None = None
    guide: tuple[float, ...] | tuple[tuple[float, ...], ...] | None = None

    @property
    def single_label(self) -> str | int | None:
        """The label, if it is a single name or column."""
        return self.label if isinstance(self.label, str | int) else None


def examples(source: Source, *, limit: int | None = None, max_rejected: float = 0.0) -> list[Example]:
    """Read all rows of a source, with their labels and rationales.

    Raises BadInput if the fraction of invalid rows exceeds ``max_rejected``.
    """
    valid: list[Example] = []
    bad: list[Rejected] = []
    for row in all_rows(source, limit=limit):
        if isinstance(row, Rejected):
            bad.append(row)
        else:
            valid.append(Example(row.id, row.text, row.label, row.rationale))
    if len(bad) > max_rejected * (len(bad) + len(valid)) or not valid:
        first = bad[0]
        raise BadInput(
            f"{len(bad)} of {len(bad) + len(valid)} rows of {source.name} cannot be used; the first is line "
            f"{first.line} of {first.file}: {first.reason}"
        )
    ((name, times),) = Counter(e.id for e in valid).most_common(1)
    if times > 1:
        raise BadInput(f"{source.name} has {times} rows with the id {name!r}; ids must be unique")
    if source.spans == "characters":
        _warn_about_split_words(valid, source.name)
    return valid


def _warn_about_split_words(examples: Sequence[Example], name: str) -> None:
    """Warn if most spans split a word: spans that count words also look like valid character spans."""
    split = [
        any(0 < i < len(text) and _cased(text[i - 1]) and _cased(text[i]) for i in span)
        for e in examples
        for text in ([e.text] if isinstance(e.text, str) else ())
        for span in e.rationale or ()
    ]
    if 2 * sum(split) > len(split):
        warnings.warn(
            f"{sum(split)} of {len(split)} rationale spans of {name} start or end inside a word; if they count words "
            "rather than characters, say so (--spans words)",
            DoubtfulRationale,
            stacklevel=3,
        )


def _cased(character: str) -> bool:
    """Whether a letter has a case; such scripts separate words by spaces."""
    return character.lower() != character.upper()


def labels_in(examples: Sequence[Example], name: str) -> list[str] | int:
    """The sorted label names, or the number of labels if they are integers from 0."""
    labels = {label for e in examples if (label := e.label) is not None}
    if len(labels) < 2:
        raise BadInput(
            f"all texts of {name} have the label {', '.join(map(repr, labels))}; training needs at least two labels"
        )
    if all(isinstance(label, int) for label in labels):
        numbers = sorted(int(label) for label in labels)  # pyright: ignore
        if numbers[0] < 0:
            raise BadInput(f"{name} has the label {numbers[0]}; labels must be names, or integers from 0")
        return numbers[-1] + 1
    if all(isinstance(label, str) for label in labels):
        return sorted(map(str, labels))
    raise BadInput(f"the labels of {name} must be either all names or all whole numbers")


def check_labels(labels: Sequence[str] | int, tests: Mapping[str, Sequence[Example]]) -> None:
    """Refuse test texts with a label that the training texts do not have; ``tests`` are named."""
    known = set(range(labels)) if isinstance(labels, int) else {*labels, *range(len(labels))}
    for name, test in tests.items():
        for e in test:
            if e.label is not None and e.label not in known:
                raise BadInput(
                    f"the label of {e.id!r} in {name} is {e.label!r}, which does not occur in the training data"
                )


def encode_examples(model: Encodes, examples: Sequence[Example]) -> list[Encoded]:
    """Tokenise the texts. Long texts are truncated without a warning, which would be repeated every epoch."""
    return encode_silently(model, [e.text for e in examples])


def encode_silently(model: Encodes, texts: Sequence[Text]) -> list[Encoded]:
    """Tokenise texts. Long ones are truncated without a warning, since they are versions of one that had it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncatedText)
        return model.encode(texts)


def sampled(items: Sequence[Item], count: int) -> list[Item]:
    """Up to ``count`` items at even distances, since data is often sorted by label.

    >>> sampled(range(10), 4)
    [0, 2, 5, 7]
    """
    return [items[i * len(items) // count] for i in range(count)] if len(items) > count else list(items)
