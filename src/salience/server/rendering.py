"""The templates of the pages, in which everything is escaped."""

from collections.abc import Mapping
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
    filters: Mapping[str, object] = {"label": label, "visible": visible, "percent": percent}
    made.filters.update(filters)  # pyright: ignore[reportArgumentType, reportCallIssue]
    made.globals["address"] = address  # pyright: ignore[reportArgumentType]
    return made


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
