"""The style and the scripts of the pages. The style is that of the saved reports, and a little more."""

from functools import cache
from hashlib import blake2b
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

from salience.server.problems import Refused
from salience.views.answers import STYLE as ANSWERS
from salience.views.counterfactuals import EDITS
from salience.views.html import STYLE as EXPLANATIONS
from salience.views.pages import STYLE as PAGES

SCRIPTS = ("explore.js", "answers.js", "compare.js", "jobs.js", "starter.js", "shared.js")
KEPT = "public, max-age=31536000, immutable"
"""Their addresses have a version, so that a browser keeps them."""


def _read(name: str) -> str:
    return files("salience.server").joinpath("static", name).read_text("utf-8")


@cache
def static(name: str) -> bytes | None:
    """The bytes of a file of the pages."""
    if name == "salience.css":
        return "\n".join((PAGES, EXPLANATIONS, ANSWERS, EDITS, _read("server.css"))).encode()
    return _read(name).encode() if name in SCRIPTS else None


@cache
def _version() -> str:
    """A name for the content of all files: scripts import each other."""
    return blake2b(b"".join(static(name) or b"" for name in ("salience.css", *SCRIPTS)), digest_size=6).hexdigest()


def address(name: str) -> str:
    """The address of a file, which changes with its content."""
    return f"/static/{_version()}/{name}"


async def read(version: str, name: str) -> Response:
    content = static(name)
    if content is None:
        raise Refused(404, f"there is no file {name!r}")
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    return Response(content, media_type=f"{kind}; charset=utf-8", headers={"cache-control": KEPT})


def router() -> APIRouter:
    made = APIRouter(include_in_schema=False)
    made.add_api_route("/static/{version}/{name}", read, methods=["GET"])
    return made
