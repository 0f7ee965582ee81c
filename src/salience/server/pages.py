"""The pages: templates filled with what the server has."""

import json
from functools import cache
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response

from salience.models import sample
from salience.server.navigation import places
from salience.server.rendering import render
from salience.server.run_pages import SAVED
from salience.server.served import answer_methods, answering, families, predicts
from salience.server.state import State, state_of
from salience.views.sheet import label

Here = Annotated[State, Depends(state_of)]

SAMPLES = 12
FIRST = "Beautiful to look at, but the story never comes alive."


@cache
def _samples() -> list[str]:
    return [FIRST, *(json.loads(line)["text"] for line in sample()[:SAMPLES])]


async def explore(here: Here, text: str = FIRST, model: str | None = None) -> HTMLResponse:
    """Explore a text."""
    models = [one for one in here.served.described() if predicts(here.served.models[one.name])]
    if not models:
        return await answers(here)
    return render(
        "explore.html",
        title="Explore a text",
        navigation=places(here),
        here="/",
        models=models,
        names=[one.name for one in models],
        models_json=json.dumps([one.model_dump() for one in models]),
        families_json=json.dumps(families()),
        model=model,
        text=text[: here.limits.characters],
        samples=_samples(),
        limits=here.limits,
    )


async def answers(here: Here) -> HTMLResponse:
    """Explore the answer of a language model."""
    names = [name for name, model in here.served.models.items() if answering(model)]
    methods = {name: answer_methods(here.served.models[name]) for name in names}
    return render(
        "answers.html",
        title="Explore an answer",
        navigation=places(here),
        here="/answers",
        models=names,
        methods_json=json.dumps(methods),
        limits=here.limits,
    )


async def compare(here: Here) -> HTMLResponse:
    """Compare two models on one text."""
    models = [one for one in here.served.described() if predicts(here.served.models[one.name])]
    shared = [name for name in models[0].methods if all(name in one.methods for one in models)] if models else []
    return render(
        "compare.html",
        title="Compare models",
        navigation=places(here),
        here="/compare",
        models=[one.name for one in models],
        methods=shared,
        text=FIRST,
        limits=here.limits,
    )


async def compare_two_runs(one: str, other: str, here: Here) -> HTMLResponse:
    """Two runs, ready to be compared in the background."""
    return render(
        "compare_runs.html", title="Compare two runs", navigation=places(here), here="/runs", one=one, other=other
    )


async def words(run: str, here: Here) -> HTMLResponse:
    """The most salient words of a run, ready to be counted in the background."""
    return render("words.html", title=f"Words of {label(run)}", navigation=places(here), here="/runs", run=run)


async def jobs(here: Here) -> HTMLResponse:
    """Work in the background."""
    models = [name for name, model in here.served.models.items() if predicts(model)]
    return render("jobs.html", title="Background jobs", navigation=places(here), here="/jobs", models=models)


async def job(id: str, here: Here) -> HTMLResponse:
    """The result of a job."""
    here.jobs.result(id)
    address, title = f"/jobs/result?{urlencode({'id': id})}", label(here.jobs.state(id).work)
    return render("report.html", title=title, navigation=places(here), here="/jobs", address_of_report=address)


async def result(id: str, here: Here) -> Response:
    """The page that a job has made; it may run and load nothing."""
    return HTMLResponse(here.jobs.result(id), headers={"content-security-policy": SAVED})


async def api(request: Request, here: Here) -> HTMLResponse:
    """The operations of the JSON API, from its OpenAPI document."""
    document = request.app.openapi()
    operations = [
        (method.upper(), path, about["description"], about["operationId"])
        for path, own in document["paths"].items()
        for method, about in own.items()
    ]
    return render("api.html", title="JSON API", navigation=places(here), here="/api", operations=operations)


def router() -> APIRouter:
    made = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    for place, page in (
        ("/", explore),
        ("/answers", answers),
        ("/compare", compare),
        ("/compare/runs", compare_two_runs),
        ("/run/words", words),
        ("/jobs", jobs),
        ("/job", job),
        ("/jobs/result", result),
        ("/api", api),
    ):
        made.add_api_route(place, page, methods=["GET"])
    return made
