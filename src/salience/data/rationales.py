"""Human rationales as weights of a model's tokens."""

from collections.abc import Iterable

from salience.core.text import Encoded, Span, overlaps
from salience.errors import BadInput


def marked(spans: Iterable[Span], encoded: Encoded) -> tuple[float, ...]:
    """1 for every token that overlaps a span, 0 for all others.

    >>> marked([(2, 6)], Encoded("a fine", (1, 2), ("a", "fine"), ((0, 1), (2, 6)), (False, False)))
    (0.0, 1.0)
    """
    marks = list(spans)
    for start, end in marks:
        if not 0 <= start < end <= len(encoded.text):
            raise BadInput(
                f"the rationale span [{start}, {end}] lies outside its text of {len(encoded.text)} characters: "
                f"{encoded.text[:60]!r}"
            )
    return tuple(
        float(not special and overlaps(span, marks))
        for span, special in zip(encoded.offsets, encoded.special, strict=True)
    )
