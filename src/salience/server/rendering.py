"""The templates of the pages, in which everything is escaped."""

from collections.abc import Mapping, Sequence
from functools import cache

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from salience.core.characters import visible
from salience.server.files import address
from salience.views.sheet import label


def render(template: str, status: int = 200, **values: object) -> HTMLResponse:
    """A page, or a part of one."""
    return HTMLResponse(_environment().get_template(template).render(values), status)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("salience.server", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, object] = {"label": label, "visible": visible, "percent": percent, "short": short}
    made.filters.update(filters)  # pyright: ignore[reportArgumentType, reportCallIssue]
    made.globals["address"] = address  # pyright: ignore[reportArgumentType]
    return made


def short(name: str, names: Sequence[str]) -> str:
    """The last part of the name of a model, if no other model has it.

    >>> short("org/my-model", ["org/my-model", "sentiment"])
    'my-model'
    """
    last = _last(name)
    return last if [_last(one) for one in names].count(last) == 1 else name


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
