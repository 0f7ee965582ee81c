"""How many of n tokens a share is, and how a share is written, by the same rule everywhere.

A share of n tokens is round(share · n) tokens. The product is exact: a share is the decimal number that it is written
as, so that 0.575 of 100 is 57.5, though 0.575 * 100 is 57.49999999999999 in floating point. Halves go to the even
number, as with Python's ``round``: half of 5 tokens are 2, half of 7 are 4.
"""

from fractions import Fraction
from math import isnan


def portion(share: float, n: int) -> int:
    """Return how many of n are a share of them, none included.

    >>> portion(0.55, 100), portion(0.575, 100), portion(0.1, 4)
    (55, 58, 0)
    """
    return round(Fraction(str(float(share))) * n)


def count_of(share: float, n: int) -> int:
    """Return the number of tokens in a share of n tokens, at least one.

    >>> count_of(0.2, 12), count_of(0.01, 12)
    (2, 1)
    """
    return max(1, portion(share, n))


NO_BREAK = "\N{NO-BREAK SPACE}"


def percent(share: float, digits: int = 0) -> str:
    """A share as a percentage, a dash if it is undefined; the sign of per cent never starts a line.

    >>> percent(0.9349), percent(0.9349, 1), percent(float("nan"))
    ('93\\xa0%', '93.5\\xa0%', '–')
    """
    return "–" if isnan(share) else f"{100 * share:.{digits}f}{NO_BREAK}%"
