"""The application: operations, pages and files behind one guard."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

import salience
from salience.core.types import Model
from salience.server import api, files, flips, fragments, job_api, pages, run_api, run_pages
from salience.server.folders import Folders
from salience.server.guard import Guard, host_names
from salience.server.handlers import add_handlers
from salience.server.jobs import Jobs
from salience.server.limits import Limits
from salience.server.served import Served
from salience.server.state import READING, State
from salience.server.work import Work

DESCRIPTION = (
    "Why did the model say that? Predictions, explanations, edits and comparisons of texts by the models of this "
    "server, and the texts of its run folders. Requests that compute something are JSON, from this server's own pages "
    "or from programs; errors have one line in `detail`."
)
LOOPBACK = "127.0.0.1"
PORT = 8765


def create_app(
    models: Mapping[str, Model],
    *,
    folders: Sequence[str | Path] = (),
    limits: Limits = Limits(),  # noqa: B008
    token: str | None = None,
    hosts: frozenset[str] = host_names(LOOPBACK, PORT),
) -> FastAPI:
    """The ASGI application that serves some models, and the runs and reports below some folders.

    ``hosts`` are the values of the Host header that are answered, exactly. With a ``token``, every request needs it.

    >>> app = create_app({"sentiment": salience.load()}, folders=["out"])           # doctest: +SKIP
    """
    served = Served(models)
    state = State(served, Work.of([*models, READING], limits), limits, Folders(folders), Jobs(limits))
    app = FastAPI(
        title="salience",
        version=salience.__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        middleware=[
            Middleware(Guard, hosts=hosts, token=token, body=limits.body, patience=limits.patience),
            Middleware(GZipMiddleware, minimum_size=1000),
        ],
    )
    app.state.salience = state
    add_handlers(app)
    for part in (api, flips, run_api, job_api, fragments, pages, run_pages, files):
        app.include_router(part.router())
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    yield
    app.state.salience.work.close()
    app.state.salience.jobs.close()
