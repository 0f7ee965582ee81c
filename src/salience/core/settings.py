"""The settings of a method: read from its signature and checked before anything runs."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from math import inf, isfinite
from numbers import Integral, Real
from reprlib import Repr
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from salience.errors import BadInput, unknown

LARGEST = 2**63 - 1
"""The largest whole number that a tensor or a Parquet file can hold."""


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a number, as the metadata of its annotation: ``Annotated[float, Range(0, 1)]``."""

    low: int | float
    high: int | float = inf
    above: bool = False
    """Whether the number must be greater than ``low``."""

    def __contains__(self, value: Any) -> bool:
        return bool((self.low < value if self.above else self.low <= value) and value <= self.high)

    def __str__(self) -> str:
        most = "" if self.high in (inf, LARGEST) else f" and at most {self.high:,}"
        return f"{'above' if self.above else 'of at least'} {self.low:,}{most}"


Count = Annotated[int, Range(1, 1_000_000)]
"""A number of passes, samples or tokens."""
Pairs = Annotated[int, Range(2, 1_000_000)]
"""A number of samples of which two are always needed."""
Nodes = Annotated[int, Range(1, 5_000)]
"""A number of quadrature nodes; the nodes of the Gauss-Legendre rule cost time and memory by their square."""
Seed = Annotated[int, Range(0, LARGEST)]
Share = Annotated[float, Range(0, 1, above=True)]
Fraction = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(0, above=True)]
NotNegative = Annotated[float, Range(0)]


def settings_of(method: Callable[..., Any]) -> Mapping[str, Parameter]:
    """Return the settings that a method takes, with their defaults."""
    return {n: p for n, p in signature(method).parameters.items() if p.kind is Parameter.KEYWORD_ONLY}


def read_value(text: str) -> Any:
    """The value of a setting that is written as text: JSON; anything else is kept as a string.

    >>> read_value("0.5"), read_value("delete")
    (0.5, 'delete')
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def check(method: Callable[..., Any], name: str, value: object) -> None:
    """Raise unless the value matches the setting's annotation; for an unknown word, suggest the closest one."""
    function = getattr(method, "read", method)
    hint = get_type_hints(function, include_extras=True).get(name, Any)
    if fits(value, hint):
        return
    words = options(hint)
    if words and isinstance(value, str) and int not in get_args(hint):
        raise BadInput(unknown(value, words, name, method.__name__))
    raise BadInput(f"{name} of {method.__name__} takes {described(hint)}, not {shortened(value)}")


def shortened(value: object) -> str:
    """A value as a message shows it, shortened if it is long."""
    short = Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    return short.repr(value)


def fits(value: object, hint: Any) -> bool:
    """Whether a value matches an annotation; unsupported annotations accept every value.

    Numbers must be finite, and whole numbers fit into 64 bits.

    >>> fits("l2", Literal["l1", "l2"]), fits(3, float), fits(True, int), fits(None, int | None)
    (True, True, False, True)
    >>> fits(0, Count), fits(float("nan"), float), fits(10**30, int)
    (False, False, False)
    """
    origin = get_origin(hint)
    if origin is Annotated:
        kind, *ranges = get_args(hint)
        return fits(value, kind) and all(value in one for one in ranges if isinstance(one, Range))
    if origin is Literal:
        return value in get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if origin in (list, tuple, Sequence):
        return isinstance(value, list | tuple) and all(fits(v, get_args(hint)[0]) for v in value)
    if hint in (int, float):
        return _is_number(value, Integral if hint is int else Real)
    return not isinstance(hint, type) or isinstance(value, hint)


def _is_number(value: object, kind: type) -> bool:
    if isinstance(value, bool) or not isinstance(value, kind):
        return False
    return abs(int(value)) <= LARGEST if isinstance(value, Integral) else isfinite(cast(float, value))


def as_python(value: object) -> object:
    """Convert numbers of other libraries, such as numpy, to Python numbers; return everything else unchanged.

    >>> import numpy
    >>> as_python(numpy.int64(3)), as_python([numpy.float32(0.5), "l2"]), as_python(True)
    (3, [0.5, 'l2'], True)
    """
    if isinstance(value, list | tuple):
        return [as_python(v) for v in cast(Sequence[object], value)]
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def options(hint: Any) -> list[str]:
    """Return the strings that an annotation allows."""
    if get_origin(hint) is Literal:
        return [a for a in get_args(hint) if isinstance(a, str)]
    return [word for part in get_args(hint) for word in options(part)]


def described(hint: Any) -> str:
    """Describe an annotation in words.

    >>> described(int | Literal["all"] | None)
    "a whole number, 'all' or nothing"
    >>> described(Literal["mean", "max"] | Sequence[int])
    'one of mean, max or a list of whole numbers'
    >>> described(Annotated[float, Range(0)] | None)
    'a number of at least 0 or nothing'
    """
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", NoneType: "nothing"}
    if get_origin(hint) is Annotated:
        kind, *ranges = get_args(hint)
        return " ".join([described(kind), *(str(one) for one in ranges if isinstance(one, Range))])
    if get_origin(hint) is Literal:
        words = list[object](get_args(hint))
        return f"one of {', '.join(map(str, words))}" if len(words) > 1 else repr(words[0])
    parts = [described(part) for part in get_args(hint)] if get_origin(hint) in (Union, UnionType) else []
    if len(parts) > 1:
        return f"{', '.join(parts[:-1])} or {parts[-1]}"
    if get_origin(hint) in (list, tuple, Sequence):
        inner = get_args(hint)[0]
        return f"a list of {described(inner).removeprefix('a ').replace('number', 'numbers', 1)}"
    return names.get(hint) or getattr(hint, "__name__", str(hint))


def set_to(hint: Any) -> str:
    """Describe the values of a setting in words: like :func:`described`, without None, the method's own default.

    >>> set_to(Literal["zero", "mask"] | None)
    'one of zero, mask'
    """
    parts = tuple(part for part in get_args(hint) if part is not NoneType)
    return described(Union[parts] if get_origin(hint) in (Union, UnionType) else hint)  # noqa: UP007
