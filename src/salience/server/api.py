"""The JSON API about texts and models."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from salience.explanations.explanation import Explanation
from salience.server import questions
from salience.server.problems import REFUSED
from salience.server.schemas import (
    Attention,
    Compared,
    CompareModels,
    Edited,
    EditText,
    ExplainAnswer,
    Explained,
    ExplainText,
    OfText,
    Prediction,
    ServedModel,
)
from salience.server.state import State, state_of
from salience.views.evaluation import plain

Here = Annotated[State, Depends(state_of)]


async def models(here: Here) -> list[ServedModel]:
    """The served models."""
    return here.served.described()


async def predict(question: OfText, request: Request, here: Here) -> Prediction:
    """The prediction for a text."""
    name = here.served.classifier(question.model)
    text = questions.text_of(question, here.limits)
    (result,) = await here.work.run(request, name, lambda: questions.predict(here.served.models[name], [text]))
    return result


async def explain(question: ExplainText, request: Request, here: Here) -> Explained:
    """The explanations of a text by one or more methods, and how far they agree."""
    name = here.served.classifier(question.model)
    return questions.explained(await explanations(question, request, here, name))


async def explanations(question: ExplainText, request: Request, here: State, name: str) -> list[Explanation]:
    """The explanations of a text, in the same passes as those of other requests that wait for the same methods."""
    model, key = here.served.models[name], ("explain", questions.kind_of(question))

    def work(asked: list[ExplainText]) -> list[list[Explanation]]:
        return questions.explain_together(model, asked, here.limits)

    return await here.work.run_together(request, name, key, question, work)


async def edit(question: EditText, request: Request, here: Here) -> Edited:
    """The prediction before and after a part of the text is replaced."""
    name = here.served.classifier(question.model)
    return await here.work.run(request, name, lambda: questions.edit(here.served.models[name], question, here.limits))


async def compare(question: CompareModels, request: Request, here: Here) -> Compared:
    """The same text explained by several models: how far their predictions and explanations differ."""
    names = [here.served.classifier(name) for name in dict.fromkeys(question.models)]
    chosen = {name: here.served.models[name] for name in names}
    rows = await here.work.run(request, names[0], lambda: questions.compare(chosen, question, here.limits))
    return questions.compared(names, rows)


async def attention(question: OfText, request: Request, here: Here) -> Attention:
    """The attention weights of all heads."""
    name = here.served.classifier(question.model)
    return await here.work.run(
        request, name, lambda: questions.attention(here.served.models[name], question, here.limits)
    )


async def answer(question: ExplainAnswer, request: Request, here: Here) -> dict[str, Any]:
    """The answer of a language model, with the scores of every source token for every token of it."""
    name = here.served.answering(question.model)
    result = await here.work.run(
        request, name, lambda: questions.answer(here.served.models[name], question, here.limits)
    )
    return plain(result.to_dict())


def router() -> APIRouter:
    """The operations, all of them under /api."""
    made = APIRouter(prefix="/api", tags=["texts"], responses=REFUSED)
    made.add_api_route("/models", models, methods=["GET"])
    for operation in (predict, explain, edit, compare, attention, answer):
        made.add_api_route(f"/{operation.__name__}", operation, methods=["POST"])
    return made
