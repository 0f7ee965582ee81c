"""The colours of charts: each is replaced by another one where a page is dark."""

from collections.abc import Mapping

INK, SOFT, RULE, GRID, BAND, PAPER = "#1c1f24", "#5d646e", "#b4b8be", "#e6e5e1", "#cfe1f2", "#ffffff"
BLUE, ORANGE, GREEN, PURPLE = "#1f66a8", "#b34f00", "#2b7340", "#7446a0"
RED, TEAL, BROWN, PINK = "#b02a37", "#0d6f73", "#75522f", "#a63a78"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, BROWN, PINK)
"""The colours of lines and of their names."""

DARK: Mapping[str, str] = {
    INK: "#e9eaec",
    SOFT: "#a8afb9",
    RULE: "#5a616b",
    GRID: "#30343b",
    BAND: "#24486b",
    PAPER: "#1b1e23",
    BLUE: "#74b6f0",
    ORANGE: "#f3a25c",
    GREEN: "#74c48d",
    PURPLE: "#c3a6e8",
    RED: "#f19292",
    TEAL: "#62c6c8",
    BROWN: "#cfa985",
    PINK: "#eb98c4",
}
"""What replaces each of them on dark paper."""


def dark_rules(within: str) -> str:
    """Style rules that replace the colours of the charts in some element."""
    pairs = ((name, light, dark) for light, dark in DARK.items() for name in ("fill", "stroke"))
    return "".join(f'{within} [{name}="{light}"] {{ {name}: {dark}; }}\n' for name, light, dark in pairs)
