"""Segments of a prompt: words, sentences, lines, paragraphs, turns of a chat, retrieved documents, or a pattern.

Segments are spans of characters, in order and without overlap; none crosses a boundary of the prompt's parts.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, get_args

import regex

from salience.core.text import Part, Span, spans
from salience.errors import BadInput, choose

By = Literal["word", "sentence", "line", "paragraph", "turn", "document"]

_SENTENCE_END = regex.compile(
    r"""(?V1)
    (?: \p{SB=STerm} (?: \p{SB=Close}++ \p{SB=Sp}*+ (?!\p{SB=Lower}) | (?!\p{SB=Close}) \p{SB=Sp}*+ )
      | \p{SB=ATerm} (?!\p{SB=Numeric}) (?!(?<=[\p{SB=Upper}\p{SB=Lower}].)\p{SB=Upper})
        \p{SB=Close}*+ \p{SB=Sp}*+
        (?![^\p{SB=OLetter}\p{SB=Upper}\p{SB=Lower}\p{SB=Sep}\p{SB=CR}\p{SB=LF}\p{SB=STerm}\p{SB=ATerm}]*+ \p{SB=Lower})
    )
    (?![\p{SB=SContinue}\p{SB=STerm}\p{SB=ATerm}])
    | \p{SB=CR}\p{SB=LF} | [\p{SB=Sep}\p{SB=CR}\p{SB=LF}]
    """,
    regex.VERBOSE,
)
"""The end of a sentence (Unicode UAX #29, rules SB4 to SB11): a line break ends one too.

Beyond these rules, a quoted question or exclamation goes on in a small letter: "Why?" she asked.
"""

_ABBREVIATION = regex.compile(
    r"(?V1)(?:^|[^\p{L}\p{M}.])(?:[\p{Lu}--I]|Dr|Drs|Mr|Mrs|Ms|Prof|Rev|Hon|Gen|Sen|Rep|Gov|Capt|Lt|Col|Sgt|St|Mt|Jr|Sr|Fig|Figs|"
    r"No|Nos|Vol|pp|Eq|Sec|Ch|cf|vs|e\.g|i\.e|viz|approx|ca|al|Inc|Ltd|Co|Corp|Ph\.D|U\.S|U\.K)\.\s*\Z"
)
"""What ends in a full stop and is followed by a capital letter within a sentence: titles, initials, references."""

_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")


def segments(text: str, by: By | re.Pattern[str], parts: Sequence[Part] = ()) -> list[Part]:
    """Return the segments of a text, each without white space around it.

    Of a text with ``parts``, only these are segmented, one by one. ``by="turn"`` are the messages of a chat,
    ``"document"`` the passages and the question of a prompt with context. A regular expression, as compiled by
    :func:`pattern`, gives its matches.

    Sentences end as in Unicode UAX #29, and not after common English abbreviations and initials. Hence a line break
    always ends a sentence, and a sentence that ends in an abbreviation is joined to the next.

    >>> [text[s.start : s.end] for text in ["Dr. No paid 3.5 dollars. Why?"] for s in segments(text, "sentence")]
    ['Dr. No paid 3.5 dollars.', 'Why?']
    """
    if isinstance(by, re.Pattern):
        return _cut(text, "match", lambda piece: (m.span() for m in by.finditer(piece)), parts, repr(by.pattern))
    choose(by, get_args(By), "kind of segment")
    if by in ("turn", "document"):
        return _named(by, parts)
    return _cut(text, by, _RULES[by], parts, by)


def pattern(expression: str) -> re.Pattern[str]:
    """Compile a regular expression whose matches are segments."""
    try:
        return re.compile(expression)
    except re.error as error:
        raise BadInput(f"{expression!r} is not a regular expression: {error}") from error


def _named(by: str, parts: Sequence[Part]) -> list[Part]:
    kinds = {"turn": ("turn",), "document": ("document", "question")}[by]
    if result := [part for part in parts if part.kind in kinds]:
        return result
    if by == "turn":
        raise BadInput("the prompt has no turns; pass a chat, a list of messages")
    raise BadInput("the prompt has no documents; pass passages with the question (--context, or context in Python)")


Rule = Callable[[str], Iterator[Span]]
"""Spans of a text, which may have white space around them."""


def _cut(text: str, kind: str, rule: Rule, parts: Sequence[Part], name: str) -> list[Part]:
    whole = parts or [Part("", 0, len(text))]
    found = [(part.start + a, part.start + b) for part in whole for a, b in rule(text[part.start : part.end])]
    kept = [span for a, b in found if (span := _trimmed(text, a, b))]
    if not kept:
        raise BadInput(f"no segment of the prompt is matched by {name}; choose another kind of segment")
    return [Part(f"{kind} {number}", a, b, kind) for number, (a, b) in enumerate(kept, 1)]


def _trimmed(text: str, start: int, end: int) -> Span | None:
    """The span without white space around it; None if nothing is left."""
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    end = start + len(piece.strip())
    return (start, end) if start < end else None


def _between(ends: Sequence[int], text: str) -> Iterator[Span]:
    return pairwise([0, *(end for end in ends if 0 < end < len(text)), len(text)])


def _words(text: str) -> Iterator[Span]:
    return iter(spans(text))


def _sentences(text: str) -> Iterator[Span]:
    ends = [m.end() for m in _SENTENCE_END.finditer(text) if not _abbreviated(text, m.group(), m.end())]
    return _between(ends, text)


def _abbreviated(text: str, end: str, at: int) -> bool:
    """Whether a full stop belongs to an abbreviation; a line break ends the sentence nevertheless."""
    return "\n" not in end and bool(_ABBREVIATION.search(text, max(0, at - 24), at))


def _lines(text: str) -> Iterator[Span]:
    return _between([m.end() for m in re.finditer("\n", text)], text)


def _paragraphs(text: str) -> Iterator[Span]:
    return _between([m.end() for m in _PARAGRAPH_END.finditer(text)], text)


_RULES: Mapping[str, Rule] = {"word": _words, "sentence": _sentences, "line": _lines, "paragraph": _paragraphs}


def owners(
    segments: Sequence[Part], offsets: Sequence[Span], special: Sequence[bool] | None = None
) -> list[int | None]:
    """Return the segment that each token belongs to: the one that it shares most characters with, the first of equals.

    Special tokens belong to none, and neither do tokens outside of all segments.

    >>> owners([Part("a", 0, 2), Part("b", 2, 7)], [(0, 2), (1, 5), (7, 9)])
    [0, 1, None]
    """
    starts = [segment.start for segment in segments]
    return [
        None if special is not None and special[token] else _owner(segments, starts, span)
        for token, span in enumerate(offsets)
    ]


def _owner(segments: Sequence[Part], starts: Sequence[int], span: Span) -> int | None:
    start, end = span
    near = range(max(0, bisect_right(starts, start) - 1), bisect_left(starts, end))
    shared = {number: min(end, segments[number].end) - max(start, segments[number].start) for number in near}
    best = max(shared, key=lambda number: shared[number], default=None)
    return best if best is not None and shared[best] > 0 else None


def sums(
    segments: Sequence[Part],
    offsets: Sequence[Span],
    scores: Sequence[float],
    special: Sequence[bool] | None = None,
) -> tuple[list[float], float]:
    """Return the sum of the scores of each segment's tokens, and that of the rest, such as the template of a chat.

    >>> sums([Part("a", 0, 2), Part("b", 2, 7)], [(0, 2), (1, 5), (7, 9)], [1.0, 2.0, 4.0])
    ([1.0, 2.0], 4.0)
    """
    totals, rest = [0.0] * len(segments), 0.0
    for owner, score in zip(owners(segments, offsets, special), scores, strict=True):
        if owner is None:
            rest += score
        else:
            totals[owner] += score
    return totals, rest
