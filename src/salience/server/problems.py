"""Errors as HTTP answers: one line in ``detail`` that says what came, what was expected, and what to do."""

from typing import Any

from fastapi.responses import JSONResponse

from salience.core.characters import visible
from salience.server.schemas import Problem

REFUSED: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem, "description": why}
    for code, why in (
        (400, "The body is not JSON, or the request cannot be fulfilled"),
        (403, "Sent by another site, or without the token"),
        (404, "Not found"),
        (408, "Did not arrive in time"),
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
