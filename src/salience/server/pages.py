"""The pages: templates filled with what the server has."""

import json
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse

from salience.models import sample
from salience.server.navigation import places
from salience.server.rendering import render
from salience.server.served import answer_methods, answering, predicts
from salience.server.state import State, state_of

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
        models_json=json.dumps([one.model_dump() for one in models]),
        model=model,
        text=text[: here.limits.characters],
        samples=_samples(),
        limits=here.limits,
        flips=False,
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


def router() -> APIRouter:
    made = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    made.add_api_route("/", explore, methods=["GET"])
    made.add_api_route("/answers", answers, methods=["GET"])
    return made
