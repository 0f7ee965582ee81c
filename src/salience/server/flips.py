"""Small edits that flip a decision, found by ``salience.counterfactuals`` where this version has it."""

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse

from salience.core.types import Model
from salience.errors import BadInput
from salience.server.limits import Limits
from salience.server.problems import REFUSED
from salience.server.questions import text_of
from salience.server.rendering import render
from salience.server.schemas import Flip, FlipText
from salience.server.state import State, state_of

Here = Annotated[State, Depends(state_of)]
HOME = "salience.counterfactuals"


def available() -> bool:
    """Whether this version of salience finds counterfactuals."""
    return find_spec(HOME) is not None


def find(model: Model, question: FlipText, limits: Limits) -> list[Flip]:
    """The smallest edits that flip the decision, the smallest first."""
    text = text_of(question, limits)
    if question.pair is not None:
        raise BadInput("edits are proposed for a single text; leave out pair")
    finder: Any = import_module(HOME)
    kinds = dict.fromkeys(question.kinds)
    (found,) = finder.counterfactual(model, text, edits=tuple(kinds), count=question.found, max_edits=question.edits)
    return [Flip(text=c.text, label=c.label, probability=c.probability, changed=c.changed) for c in found.results]


async def flip(question: FlipText, request: Request, here: Here) -> list[Flip]:
    """The smallest edits of a text that flip the decision."""
    name = here.served.classifier(question.model)
    return await here.work.run(request, name, lambda: find(here.served.models[name], question, here.limits))


async def shown(question: FlipText, request: Request, here: Here) -> HTMLResponse:
    """The same as a part of the page."""
    return render("flips.html", flips=await flip(question, request, here))


def router() -> APIRouter:
    made = APIRouter(responses=REFUSED)
    if available():
        made.add_api_route("/api/flip", flip, methods=["POST"], tags=["texts"])
        made.add_api_route("/page/flip", shown, methods=["POST"], include_in_schema=False)
    return made
