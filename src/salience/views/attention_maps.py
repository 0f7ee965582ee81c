"""Attention weights as maps: a small one for every head of every layer, and a large one with the words."""

from collections.abc import Sequence
from html import escape

from salience.views.html import text_of
from salience.views.sheet import label

Weights = Sequence[Sequence[float]]
"""The weights of one head: one row per query, one column per token."""

SHADES = (0.05, 0.15, 0.3, 0.5, 0.75)
"""The least share of the largest weight for each shade of a small map; what is below the first is left blank."""

READER = "the classifier"
"""The query of a model that has only one."""


def small_maps(tokens: Sequence[str], layers: Sequence[Sequence[Weights]]) -> str:
    """A map for every head, one row of maps per layer; each is a button that names its head."""
    rows = "".join(
        f'<tr><th scope="row">layer {n}</th>{"".join(_button(tokens, n, h, w) for h, w in enumerate(heads, 1))}</tr>'
        for n, heads in enumerate(layers, 1)
    )
    columns = "".join(f'<th scope="col">head {h}</th>' for h in range(1, max(map(len, layers), default=0) + 1))
    table = f'<table class="maps"><thead><tr><td></td>{columns}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="wide" tabindex="0" role="region" aria-label="maps of all heads">{table}</div>'


def _button(tokens: Sequence[str], layer: int, head: int, weights: Weights) -> str:
    title = escape(f"layer {layer}, head {head}: {summary(tokens, weights)}")
    place = f'data-layer="{layer}" data-head="{head}"'
    return f'<td><button type="button" {place} title="{title}" aria-label="{title}">{small_map(weights)}</button></td>'


def small_map(weights: Weights) -> str:
    """One map as SVG: a path for each shade, a square for each weight."""
    largest = max((w for row in weights for w in row), default=0.0) or 1.0
    squares: list[list[str]] = [[] for _ in SHADES]
    for y, row in enumerate(weights):
        for x, weight in enumerate(row):
            shade = sum(weight / largest >= least for least in SHADES) - 1
            if shade >= 0:
                squares[shade].append(f"M{x} {y}h1v1h-1z")
    paths = "".join(
        f'<path d="{"".join(own)}" fill-opacity="{(n + 1) / len(SHADES):.1f}"/>' for n, own in enumerate(squares) if own
    )
    size = f"{max(map(len, weights), default=1)} {len(weights)}"
    return f'<svg viewBox="0 0 {size}" preserveAspectRatio="none" aria-hidden="true">{paths}</svg>'


def summary(tokens: Sequence[str], weights: Weights) -> str:
    """The token that a head attends to most, over all queries, and its share.

    >>> summary(["a", "b"], [[0.2, 0.8], [0.4, 0.6]])
    'most on b (70 %)'
    """
    means = [sum(column) / len(weights) for column in zip(*weights, strict=True)]
    best = max(range(len(means)), key=lambda n: means[n])
    return f"most on {label(tokens[best])} ({100 * means[best]:.0f} %)"


def large_map(tokens: Sequence[str], weights: Weights, title: str) -> str:
    """One map with its tokens: queries down, attended tokens across."""
    queries = tokens if len(weights) > 1 else [READER]
    largest = max((w for row in weights for w in row), default=0.0) or 1.0
    heads = "".join(f'<th scope="col"><span><bdi>{text_of(label(t))}</bdi></span></th>' for t in tokens)
    lines = "".join(
        f'<tr><th scope="row"><bdi>{text_of(label(q))}</bdi></th>'
        f"{''.join(_cell(q, t, w, largest) for t, w in zip(tokens, row, strict=True))}</tr>"
        for q, row in zip(queries, weights, strict=True)
    )
    table = f'<table class="heat"><thead><tr><td></td>{heads}</tr></thead><tbody>{lines}</tbody></table>'
    return (
        f'<article class="salience"><h2>{escape(title)}</h2><p class="quiet">Each row is a token that attends, each '
        f"column one that is attended to. The darkest cell is {largest:.2f}.</p>"
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(title)}">{table}</div></article>'
    )


def _cell(query: str, token: str, weight: float, largest: float) -> str:
    title = escape(f"{label(query)} on {label(token)}: {weight:.3f}")
    return f'<td class="much" style="--s:{weight / largest:.2f}" title="{title}" aria-label="{title}"></td>'
