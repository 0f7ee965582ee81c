"""A method's settings: read from its signature, checked before anything runs."""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from salience.errors import BadInput, unknown


def settings_of(method: Callable[..., Any]) -> Mapping[str, Parameter]:
    """The settings a method takes, with their defaults."""
    return {n: p for n, p in signature(method).parameters.items() if p.kind is Parameter.KEYWORD_ONLY}


def check(method: Callable[..., Any], name: str, value: object) -> None:
    """Raise unless the value fits the setting's annotation; a wrong word suggests the nearest right one."""
    function = getattr(method, "read", method)
    hint = get_type_hints(function).get(name, Any)
    if fits(value, hint):
        return
    what = f"{name} of {method.__name__}"
    words = options(hint)
    if words and isinstance(value, str) and int not in get_args(hint):
        raise BadInput(unknown(value, words, what))
    raise BadInput(f"{what} takes {described(hint)}, not {value!r}")


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of the annotated type; annotations that are not understood let everything pass.

    >>> fits("l2", Literal["l1", "l2"]), fits(3, float), fits(True, int), fits(None, int | None)
    (True, True, False, True)
    """
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if origin in (list, tuple, Sequence):
        return isinstance(value, list | tuple) and all(fits(v, get_args(hint)[0]) for v in value)
    if hint in (int, float):
        return not isinstance(value, bool) and isinstance(value, Integral if hint is int else Real)
    return not isinstance(hint, type) or isinstance(value, hint)


def plain(value: object) -> object:
    """A number of another library, such as numpy's, as Python's own; everything else as it is.

    >>> import numpy
    >>> plain(numpy.int64(3)), plain([numpy.float32(0.5), "l2"]), plain(True)
    (3, [0.5, 'l2'], True)
    """
    if isinstance(value, list | tuple):
        return [plain(v) for v in cast(Sequence[object], value)]
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def options(hint: Any) -> list[str]:
    """The words an annotation allows."""
    if get_origin(hint) is Literal:
        return [a for a in get_args(hint) if isinstance(a, str)]
    return [word for part in get_args(hint) for word in options(part)]


def described(hint: Any) -> str:
    """An annotation in words.

    >>> described(int | Literal["all"] | None)
    "a whole number, 'all' or nothing"
    >>> described(Literal["mean", "max"] | Sequence[int])
    'one of mean, max or a list of whole numbers'
    """
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", NoneType: "nothing"}
    if get_origin(hint) is Literal:
        words = list[object](get_args(hint))
        return f"one of {', '.join(map(str, words))}" if len(words) > 1 else repr(words[0])
    parts = [described(part) for part in get_args(hint)] if get_origin(hint) in (Union, UnionType) else []
    if len(parts) > 1:
        return f"{', '.join(parts[:-1])} or {parts[-1]}"
    if get_origin(hint) in (list, tuple, Sequence):
        return "a list of whole numbers" if get_args(hint)[0] is int else "a list"
    return names.get(hint) or getattr(hint, "__name__", str(hint))


def set_to(hint: Any) -> str:
    """What a setting can be set to, in words: as :func:`described`, without the None that leaves it to the method.

    >>> set_to(Literal["zero", "mask"] | None)
    'one of zero, mask'
    """
    parts = tuple(part for part in get_args(hint) if part is not NoneType)
    return described(Union[parts] if get_origin(hint) in (Union, UnionType) else hint)  # noqa: UP007
