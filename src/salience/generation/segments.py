"""Segments of a prompt: words, sentences, lines, paragraphs, turns of a chat, retrieved documents, or a pattern.

Segments are spans of characters, in order and without overlap; none crosses a boundary of the prompt's parts.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
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


def segments(
    text: str, by: By | re.Pattern[str], parts: Sequence[Part] = (), offsets: Sequence[Span] = ()
) -> list[Part]:
    """Return the segments of a text, each without white space around it.

    With the ``offsets`` of its tokens, a segment that would have no token of its own is joined to the one it shares a
    token with: the characters of Chinese words are words of their own, but may be one token.

    Of a text with ``parts``, only these are segmented, one by one. ``by="turn"`` are the messages of a chat,
    ``"document"`` the passages and the question of a prompt with context. A regular expression, as compiled by
    :func:`pattern`, gives its matches.

    Sentences end as in Unicode UAX #29, and not after common English abbreviations and initials. Hence a line break
    always ends a sentence, and a sentence that ends in an abbreviation is joined to the next.

    >>> [text[s.start : s.end] for text in ["Dr. No paid 3.5 dollars. Why?"] for s in segments(text, "sentence")]
    ['Dr. No paid 3.5 dollars.', 'Why?']
    """
    if isinstance(by, re.Pattern):
        matches = _cut(text, lambda piece: (m.span() for m in by.finditer(piece)), parts, repr(by.pattern))
        return _numbered("match", _joined(matches, offsets))
    choose(by, get_args(By), "kind of segment")
    if by in ("turn", "document"):
        return _named(by, parts)
    return _numbered(by, _joined(_cut(text, _RULES[by], parts, by), offsets))


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


def _cut(text: str, rule: Rule, parts: Sequence[Part], name: str) -> list[Span]:
    whole = parts or [Part("", 0, len(text))]
    pieces = [(part.start + a, part.start + b) for part in whole for a, b in rule(text[part.start : part.end])]
    kept = [span for a, b in pieces if (span := _trimmed(text, a, b))]
    if not kept:
        raise BadInput(f"no segment of the prompt is matched by {name}; choose another kind of segment")
    return kept


def _joined(spans: Sequence[Span], offsets: Sequence[Span]) -> list[Span]:
    """Join the spans that share a token, where one of them would have none."""
    starts = [start for start, _ in spans]
    near = [_near(spans, starts, offset) for offset in offsets]
    owned = {_owner(spans, offset, numbers) for offset, numbers in zip(offsets, near, strict=True)}
    first = list(range(len(spans)))
    for numbers in near:
        if any(n not in owned for n in numbers):
            first[numbers.start : numbers.stop] = [first[numbers.start]] * len(numbers)
    return [(spans[a][0], spans[max(group)][1]) for a, group in groupby(range(len(spans)), key=first.__getitem__)]


def _numbered(kind: str, spans: Sequence[Span]) -> list[Part]:
    return [Part(f"{kind} {number}", a, b, kind) for number, (a, b) in enumerate(spans, 1)]


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
    spans = [(segment.start, segment.end) for segment in segments]
    starts = [start for start, _ in spans]
    return [
        None if special is not None and special[token] else _owner(spans, offset, _near(spans, starts, offset))
        for token, offset in enumerate(offsets)
    ]


def _near(spans: Sequence[Span], starts: Sequence[int], token: Span) -> range:
    """The numbers of the spans that share characters with a token."""
    start, end = token
    if start == end:
        return range(0)
    first = max(0, bisect_right(starts, start) - 1)
    if first < len(spans) and spans[first][1] <= start:
        first += 1
    return range(first, bisect_left(starts, end))


def _owner(spans: Sequence[Span], token: Span, near: range) -> int | None:
    return max(near, key=lambda n: min(token[1], spans[n][1]) - max(token[0], spans[n][0]), default=None)


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
