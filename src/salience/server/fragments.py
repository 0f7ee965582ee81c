"""The parts of a page that its scripts ask for: the same answers as those of the API, as the views show them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool

from salience.server import questions
from salience.server.api import explanations
from salience.server.rendering import render
from salience.server.schemas import EditText, OfText, ShowAnswer, ShowHead, ShowModels, ShowText
from salience.server.state import State, state_of
from salience.views import answers, attention_maps, comparison
from salience.views.html import articles

Here = Annotated[State, Depends(state_of)]


async def explain(question: ShowText, request: Request, here: Here) -> HTMLResponse:
    name = here.served.classifier(question.model)

    row = await explanations(question, request, here, name)

    def shown() -> str:
        pairs = [(a.one, a.other, a.spearman) for a in questions.agreement(row)]
        return articles(row, question.level, question.view) + comparison.agreement(pairs)

    return HTMLResponse(await run_in_threadpool(shown))


async def edit(question: EditText, request: Request, here: Here) -> HTMLResponse:
    name = here.served.classifier(question.model)
    result = await here.work.run(request, name, lambda: questions.edit(here.served.models[name], question, here.limits))
    return render("edited.html", edited=result)


async def attention(question: OfText, request: Request, here: Here) -> HTMLResponse:
    name = here.served.classifier(question.model)
    result = await here.work.run(
        request, name, lambda: questions.attention(here.served.models[name], question, here.limits)
    )
    return HTMLResponse(attention_maps.small_maps(result.tokens, result.layers))


async def head(question: ShowHead, request: Request, here: Here) -> HTMLResponse:
    name = here.served.classifier(question.model)
    result = await here.work.run(
        request, name, lambda: questions.attention(here.served.models[name], question, here.limits)
    )
    weights = questions.one_head(result, question.layer, question.head)
    return HTMLResponse(
        attention_maps.large_map(result.tokens, weights, f"layer {question.layer}, head {question.head}")
    )


async def compare(question: ShowModels, request: Request, here: Here) -> HTMLResponse:
    names = [here.served.classifier(name) for name in dict.fromkeys(question.models)]
    chosen = {name: here.served.models[name] for name in names}

    def work() -> str:
        rows = questions.compare(chosen, question, here.limits)
        result = questions.compared(names, rows)
        pairs = [(a.one, a.other, a.spearman) for a in result.agreement]
        predictions = {p.model: p.probabilities for p in result.predictions}
        beside = f'<div class="beside">{"".join(articles(row, question.level) for row in rows)}</div>'
        shown = comparison.models(predictions, dict(zip(names, rows, strict=True)), beside)
        return shown + comparison.agreement(pairs)

    return HTMLResponse(await here.work.run(request, names[0], work))


async def answer(question: ShowAnswer, request: Request, here: Here) -> HTMLResponse:
    name = here.served.answering(question.model)

    def work() -> str:
        return answers.articles([questions.answer(here.served.models[name], question, here.limits)], question.level)

    return HTMLResponse(await here.work.run(request, name, work))


def router() -> APIRouter:
    made = APIRouter(prefix="/page", include_in_schema=False)
    for fragment in (explain, edit, attention, head, compare, answer):
        made.add_api_route(f"/{fragment.__name__}", fragment, methods=["POST"])
    return made
