"""The settings of every method and metric are checked by type and range before a model is needed."""

from collections.abc import Callable
from typing import Annotated, Any, get_args, get_type_hints

import pytest

from salience.core.settings import Range, check, described, fits, settings_of
from salience.errors import BadInput
from salience.explanations.explainer import prepare
from salience.methods import METHODS
from salience.metrics import METRICS

IMPOSSIBLE = [float("nan"), float("inf"), -float("inf"), 10**30, -(10**30), True, [float("nan")], {}]


def numbers(hint: Any) -> set[type]:
    """The kinds of number that an annotation takes."""
    if hint in (int, float):
        return {hint}
    return {kind for part in get_args(hint) if not isinstance(part, Range) for kind in numbers(part)}


NUMERIC = [
    (method, name)
    for method in METHODS
    for name in settings_of(method)
    if numbers(get_type_hints(getattr(method, "read", method), include_extras=True).get(name))
]


@pytest.mark.parametrize(("method", "name"), NUMERIC, ids=lambda x: getattr(x, "__name__", x))
@pytest.mark.parametrize("value", IMPOSSIBLE, ids=repr)
def test_impossible_numbers_are_refused_by_every_method(method: Callable[..., Any], name: str, value: Any):
    with pytest.raises(BadInput, match=f"{name} of {method.__name__} takes "):
        prepare(method, {name: value})


def test_there_are_numeric_settings():
    assert len(NUMERIC) > 25


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_impossible_numbers_fit_no_setting_of_a_metric(metric: Any):
    for parameter in metric.settings.values():
        assert not [value for value in IMPOSSIBLE if fits(value, parameter.annotation)], parameter
        assert fits(parameter.default, parameter.annotation)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)
def test_the_defaults_fit(method: Callable[..., Any]):
    for name, parameter in settings_of(method).items():
        check(method, name, parameter.default)


@pytest.mark.parametrize(
    ("range_", "inside", "outside", "words"),
    [
        (Range(1), (1, 7), (0, -3), "a number of at least 1"),
        (Range(0, 1), (0, 0.5, 1), (-1e-9, 1.1), "a number of at least 0 and at most 1"),
        (Range(0, 1, above=True), (1e-9, 1), (0, 2), "a number above 0 and at most 1"),
    ],
)
def test_ranges(range_: Range, inside: tuple[float, ...], outside: tuple[float, ...], words: str):
    hint = Annotated[float, range_]
    assert all(fits(value, hint) for value in inside)
    assert not any(fits(value, hint) for value in outside)
    assert described(hint) == words


def test_a_long_value_is_shortened_in_the_message():
    with pytest.raises(BadInput) as caught:
        prepare("lime", {"samples": 10**4000})
    assert len(str(caught.value)) < 200
