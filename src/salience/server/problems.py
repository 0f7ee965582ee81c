"""Errors as HTTP answers: one line in ``detail`` that says what came, what was expected, and what to do."""

from collections.abc import Callable
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from salience.core.characters import visible
from salience.errors import SalienceError
from salience.server.schemas import Problem

REFUSED: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem, "description": why}
    for code, why in (
        (400, "The body is not JSON, or the request cannot be fulfilled"),
        (403, "Sent by another site, or without the token"),
        (404, "Not found"),
        (413, "Too long"),
        (415, "Not application/json"),
        (422, "A value is missing, unknown or of a wrong type"),
        (503, "Too much work waits already"),
        (504, "Took too long"),
    )
}
"""The errors that every operation may answer with, for the OpenAPI document."""


class Refused(Exception):
    """A request that is refused: a status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def problem(status: int, message: str) -> JSONResponse:
    """The answer to a request that is refused."""
    wait = {"retry-after": "1"} if status == 503 else None
    return JSONResponse({"detail": " ".join(visible(message).split())}, status, wait)


def _refused(_: Request, error: Exception) -> Response:
    known = cast(Refused, error)
    return problem(known.status, known.message)


def _ours(_: Request, error: Exception) -> Response:
    return problem(422, str(error))


def _http(_: Request, error: Exception) -> Response:
    known = cast(HTTPException, error)
    answer = problem(known.status_code, str(known.detail))
    answer.headers.update(known.headers or {})
    return answer


def _invalid(_: Request, error: Exception) -> Response:
    """The first mistake of a request: where it is, and what was expected there."""
    first = cast(RequestValidationError, error).errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    if first["type"] == "json_invalid":
        return problem(400, f"the body is not JSON: {first['ctx']['error']} at character {place}")
    return problem(422, f"{place}: {first['msg']}" if place else f"the request: {first['msg']}")


def _unexpected(_: Request, error: Exception) -> Response:
    return problem(500, f"unexpected {type(error).__name__}: {error}")


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
