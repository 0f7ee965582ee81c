"""What is answered to a request that fails: JSON to programs, a page to readers."""

from collections.abc import Callable
from typing import cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from salience.core.characters import visible
from salience.errors import SalienceError
from salience.server.navigation import places
from salience.server.problems import Refused, problem
from salience.server.rendering import render
from salience.server.state import state_of


def _answer(request: Request, status: int, message: str) -> Response:
    """A page for a browser that opens an address, JSON for everything else."""
    reads_pages = "text/html" in request.headers.get("accept", "") and request.method == "GET"
    if not reads_pages or request.url.path.startswith("/api/"):
        return problem(status, message)
    shown = " ".join(visible(message).split())
    return render("error.html", status, title="Not shown", navigation=places(state_of(request)), here="", message=shown)


def _refused(request: Request, error: Exception) -> Response:
    known = cast(Refused, error)
    return _answer(request, known.status, known.message)


def _ours(request: Request, error: Exception) -> Response:
    return _answer(request, 422, str(error))


def _http(request: Request, error: Exception) -> Response:
    known = cast(HTTPException, error)
    answer = _answer(request, known.status_code, str(known.detail))
    answer.headers.update(known.headers or {})
    return answer


def _invalid(request: Request, error: Exception) -> Response:
    """The first mistake of a request: where it is, and what was expected there."""
    first = cast(RequestValidationError, error).errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    if first["type"] == "json_invalid":
        return _answer(request, 400, f"the body is not JSON: {first['ctx']['error']} at character {place}")
    return _answer(request, 422, f"{place}: {first['msg']}" if place else f"the request: {first['msg']}")


def _unexpected(request: Request, error: Exception) -> Response:
    return _answer(request, 500, f"unexpected {type(error).__name__}: {error}")


HANDLERS: dict[type[Exception], Callable[[Request, Exception], Response]] = {
    Refused: _refused,
    SalienceError: _ours,
    HTTPException: _http,
    RequestValidationError: _invalid,
    Exception: _unexpected,
}


def add_handlers(app: FastAPI) -> None:
    """Answer every error in the same form."""
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
