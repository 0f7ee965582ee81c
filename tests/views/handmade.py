"""Explanations written by hand, so that what a view shows can be known beforehand."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from salience.core.target import Target
from salience.core.text import spans
from salience.explanations.explanation import Explanation

SENTENCE = "A fine film, but far too long."
SCORES = (0.1, 2.0, 0.5, 0.0, -0.2, -0.6, -1.5, -1.0, 0.3)
NASTY = (
    'A <b>bold</b> & "quoted" [bold]film[/bold] \x1b[31mred</p><script>alert(1)</script>\x00 \x9b1m '
    "\u202eevil\u2069 \r\n end"
)


def made(text: str = SENTENCE, scores: Sequence[float] | None = None, **changes: Any) -> Explanation:
    """One token per word, a special token at either end; with tokens of one's own, scores are theirs."""
    words = spans(text)
    inner = tuple(scores if scores is not None else (SCORES[i % len(SCORES)] for i in range(len(words))))
    values: dict[str, Any] = {
        "text": text,
        "tokens": ("[CLS]", *(text[a:b] for a, b in words), "[SEP]"),
        "offsets": ((0, 0), *words, (0, 0)),
        "special": (True, *(False for _ in words), True),
        "scores": inner if "tokens" in changes else (0.7, *inner, -0.7),
        "target": Target("positive", None, "logit"),
        "value": 2.5,
        "probabilities": {"negative": 0.25, "positive": 0.75},
        "method": "integrated_gradients",
        "settings": {"nodes": 50, "baseline": "mask"},
        "model": "sentiment",
        "signed": True,
        "gaps": {"completeness": 0.0075},
    }
    return Explanation(**(values | changes))


def spaced(scores: Sequence[float]) -> Explanation:
    """A text whose line breaks are one token and whose next space is another, as to GPT-2."""
    offsets = ((0, 1), (1, 6), (6, 8), (8, 9), (9, 13))
    text = "A fine\n\n film"
    names = tuple(text[a:b] for a, b in offsets)
    return made(text, scores, tokens=names, offsets=offsets, special=(False,) * 5)


def layered(count: int = 3, **changes: Any) -> list[Explanation]:
    """One method over layers, each with other scores."""
    return [
        made(scores=SCORES[n:] + SCORES[:n], method="layer_saliency", settings={"layer": n}, **changes)
        for n in range(count)
    ]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
