"""Edits of the words of a text: deleted, replaced or inserted, and how far two texts are apart. No model is needed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from salience.core.text import Span, spans

EditKind = Literal["delete", "replace", "insert"]
EDITS = get_args(EditKind)


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """One word that is deleted, replaced, or inserted before the word at ``at``; words are numbered from 0."""

    at: int
    kind: EditKind
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a text, punctuation included, with their spans."""

    text: str
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, text: str) -> "Words":
        return cls(text, tuple(spans(text)))

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, at: int) -> str:
        return self.text[slice(*self.spans[at])]

    @property
    def editable(self) -> list[int]:
        """The words that may be edited: those with a letter or digit."""
        return [at for at in range(len(self)) if any(map(str.isalnum, self[at]))]

    def edited(self, edits: Iterable[Edit]) -> str:
        """Return the text with its edits. The white space before a deleted word goes with it.

        >>> Words.of("It is not bad.").edited([Edit(2, "delete", "not"), Edit(3, "replace", "bad", "awful")])
        'It is awful.'
        """
        every = {(edit.at, edit.kind == "insert"): edit for edit in edits}
        result, end = "", 0
        for at, (start, stop) in enumerate(self.spans):
            change, new = every.get((at, False)), every.get((at, True))
            word = self[at] if change is None else change.after
            word = word if new is None else f"{new.after} {word}".rstrip()
            if word:
                gap = self.text[end:start]
                result += (gap if result or not end else gap.lstrip()) + word
            end = stop
        return (result + self.text[end:]).strip() if not result else result + self.text[end:]


def like(word: str, model: str) -> str:
    """A word with the capitals of another one.

    >>> like("this", "The"), like("this", "the"), like("this", "THE"), like("NASA", "The")
    ('This', 'this', 'THIS', 'NASA')
    """
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word


def distance(a: Sequence[str], b: Sequence[str]) -> int:
    """The Levenshtein distance of two lists of words.

    >>> distance("not a bad film".split(), "a great film".split())
    2
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def words_changed(original: str, edited: str) -> int:
    """The Levenshtein distance of two texts in words."""
    a, b = ([text[slice(*span)] for span in spans(text)] for text in (original, edited))
    return distance(a, b)
