"""Colours for signed scores: blue for negative, orange for positive. Safe for colour-blind readers."""

Colour = tuple[int, int, int]

AGAINST: Colour = (46, 115, 184)
FOR: Colour = (240, 140, 40)
LIGHT: Colour = (255, 255, 255)
DARK: Colour = (24, 26, 30)
BLACK: Colour = (0, 0, 0)

FAINT = 0.08
"""Words below this share of the strongest score are not coloured."""


def shade(relative: float, ground: Colour) -> Colour:
    """The colour of a score between -1 and 1; the background stands for 0.

    >>> shade(1.0, LIGHT) == FOR, shade(0.0, LIGHT) == LIGHT
    (True, True)
    """
    end, share = (FOR if relative > 0 else AGAINST), min(1.0, abs(relative))
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
