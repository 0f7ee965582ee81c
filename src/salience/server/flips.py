"""Small edits that flip a decision."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse

from salience.core.types import Model
from salience.counterfactuals import Counterfactual, Counterfactuals, counterfactual
from salience.errors import BadInput
from salience.server.limits import Limits
from salience.server.problems import REFUSED
from salience.server.questions import text_of
from salience.server.rendering import render
from salience.server.schemas import Flip, FlipText
from salience.server.state import State, state_of
from salience.views.counterfactuals import marked

Here = Annotated[State, Depends(state_of)]


def find(model: Model, question: FlipText, limits: Limits) -> Counterfactuals:
    """The smallest edits that flip the decision, the smallest first."""
    text = text_of(question, limits)
    if question.pair is not None:
        raise BadInput("edits are proposed for a single text; leave out pair")
    kinds = tuple(dict.fromkeys(question.kinds))
    (one,) = counterfactual(model, [text], edits=kinds, count=question.found, max_edits=question.edits)
    return one


async def _results(question: FlipText, request: Request, here: State) -> Counterfactuals:
    name = here.served.classifier(question.model)
    return await here.work.run(request, name, lambda: find(here.served.models[name], question, here.limits))


def _flip(one: Counterfactual) -> Flip:
    return Flip(text=one.text, label=one.label, probability=one.probability, changed=one.changed)


async def flip(question: FlipText, request: Request, here: Here) -> list[Flip]:
    """The smallest edits of a text that flip the decision."""
    return [_flip(one) for one in (await _results(question, request, here)).results]


async def shown(question: FlipText, request: Request, here: Here) -> HTMLResponse:
    """The same as a part of the page, with the edits marked."""
    result = await _results(question, request, here)
    each = [(_flip(one), marked(result.text, one.edits)) for one in result.results]
    return render("flips.html", flips=each, most=question.edits)


def router() -> APIRouter:
    made = APIRouter(responses=REFUSED)
    made.add_api_route("/api/flip", flip, methods=["POST"], tags=["texts"])
    made.add_api_route("/page/flip", shown, methods=["POST"], include_in_schema=False)
    return made
