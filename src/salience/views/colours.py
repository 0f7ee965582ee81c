"""Colours of scores: blue for negative, orange for positive, grey without a sign. Safe for colour-blind readers."""

from typing import Literal

Colour = tuple[int, int, int]

AGAINST: Colour = (46, 115, 184)
FOR: Colour = (240, 140, 40)
MUCH: Colour = (138, 146, 157)
"""A score without a sign."""
LIGHT: Colour = (255, 255, 255)
DARK: Colour = (24, 26, 30)
BLACK: Colour = (0, 0, 0)

Side = Literal["for", "against", "much"]
SIDES: dict[Side, Colour] = {"for": FOR, "against": AGAINST, "much": MUCH}
"""The full colour of a score by what it counts for: its label, another one, or neither, as it has no sign."""

FAINT = 0.08
"""Words below this share of the strongest score are not coloured."""


def side(score: float, signed: bool = True) -> Side:
    """What a score counts for."""
    return "much" if not signed else "for" if score > 0 else "against"


def shade(relative: float, ground: Colour, signed: bool = True) -> Colour:
    """The colour of a score between -1 and 1; the background stands for 0.

    >>> shade(1.0, LIGHT) == FOR, shade(0.0, LIGHT) == LIGHT, shade(1.0, LIGHT, signed=False) == MUCH
    (True, True, True)
    """
    end, share = SIDES[side(relative, signed)], min(1.0, abs(relative))
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(ground, end, strict=True))
    return red, green, blue


def ink(ground: Colour) -> Colour:
    """Black or white, whichever has the higher contrast on this background."""
    level = luminance(ground)
    return BLACK if (level + 0.05) / 0.05 >= 1.05 / (level + 0.05) else LIGHT


def contrast_ratio(one: Colour, other: Colour) -> float:
    """The contrast ratio of WCAG 2, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: Colour) -> float:
    """Relative luminance, WCAG 2."""
    red, green, blue = (_linear(c / 255) for c in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(c: float) -> float:
    return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4


def hexadecimal(colour: Colour) -> str:
    """The colour in CSS notation.

    >>> hexadecimal((255, 255, 255))
    '#ffffff'
    """
    red, green, blue = colour
    return f"#{red:02x}{green:02x}{blue:02x}"
