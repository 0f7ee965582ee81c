"""Characters that are unsafe to print: a terminal obeys them, an image cannot hold them, they reverse what is read."""

import json
import re
from math import isfinite
from typing import Any
from unicodedata import category

_JOINERS = "\u200c\u200d"
"""Joiners are part of the spelling of scripts and emoji, and are kept."""

_UNSAFE_IN_JSON = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\ufffe\uffff]"
)
"""Characters that JSON allows in a string, and that a terminal obeys or cannot show."""


def visible(text: str, keep: str = "\n") -> str:
    """The text with control characters, direction marks, noncharacters and lone surrogates made visible.

    >>> visible("a\\x1b[31m"), visible("\\ufffe")
    ('a␛[31m', '⟨FFFE⟩')
    """
    return text if text.isascii() and text.isprintable() else "".join(c if c in keep else _symbol(c) for c in text)


def _symbol(c: str) -> str:
    kind = category(c)
    if c == "\t":
        return "    "
    if kind == "Cc":
        return chr(0x2400 + ord(c)) if ord(c) < 32 else "␡" if ord(c) == 127 else f"⟨{ord(c):02X}⟩"
    if kind == "Cs":
        return "\ufffd"
    hidden = kind in ("Cf", "Zl", "Zp") and c not in _JOINERS and not 0xE0000 <= ord(c) <= 0xE007F
    return f"⟨{ord(c):04X}⟩" if hidden or is_noncharacter(c) else c


def is_noncharacter(c: str) -> bool:
    """Whether Unicode reserves this code point forever; XML and images cannot hold it."""
    return 0xFDD0 <= ord(c) <= 0xFDEF or ord(c) & 0xFFFE == 0xFFFE


def finite(value: Any) -> Any:
    """A JSON value with null for the numbers that JSON does not have.

    >>> finite({"a": [1.5, float("nan")]})
    {'a': [1.5, None]}
    """
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Serialise as JSON in which every character is safe to print; what is read back is unchanged.

    Numbers that JSON does not have, NaN and ±∞, become null.

    >>> to_json("caf\\u00e9 \\x9b1m")
    '"café \\\\u009b1m"'
    """
    try:
        text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:
        text = json.dumps(finite(value), ensure_ascii=False, indent=indent)
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
