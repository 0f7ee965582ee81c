"""The JSON API about run folders: their texts, searched and sorted, and the words that matter most to each label."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request

from salience.runs.browsing import LARGEST
from salience.runs.browsing import Query as Question
from salience.server.problems import REFUSED
from salience.server.schemas import Report, RunFolder, RunPage, RunRow
from salience.server.state import READING, State, state_of
from salience.views.evaluation import plain

Here = Annotated[State, Depends(state_of)]
RunName = Annotated[str, Query(description="The name of a run, as listed", max_length=500)]
Sort = Literal["row", "confidence", "-confidence", "disagreement", "faithfulness", "length", "-length"]


def question(
    search: Annotated[str, Query(max_length=500, description="Characters of the text or id, regardless of case")] = "",
    label: Annotated[str | None, Query(max_length=200, description="The true label")] = None,
    prediction: Annotated[str | None, Query(max_length=200)] = None,
    wrong: Annotated[bool, Query(description="Only texts whose prediction is not their label")] = False,
    opposed: Annotated[
        bool, Query(description="Only texts on which the methods disagree: mean rank correlation not above 0")
    ] = False,
    low: Annotated[
        bool, Query(description="Only texts whose explanation is no more faithful than random scores")
    ] = False,
    method: Annotated[str | None, Query(max_length=200, description="The method whose faithfulness is meant")] = None,
    sort: Sort = "row",
    first: Annotated[int, Query(ge=0, le=10**9, description="How many texts to skip")] = 0,
    count: Annotated[int, Query(ge=1, le=LARGEST, description="How many texts to return")] = 50,
) -> Question:
    """Which texts, from the parameters of a request; empty ones are not set."""
    return Question(search, label or None, prediction or None, wrong, opposed, low, method or None, sort, first, count)


async def runs(request: Request, here: Here) -> list[RunFolder]:
    """The run folders below the folders of this server."""
    return await here.work.run(request, READING, here.folders.runs)


async def texts(run: RunName, asked: Annotated[Question, Depends(question)], request: Request, here: Here) -> RunPage:
    """A page of the texts of a run."""
    page = await here.work.run(request, READING, lambda: here.folders.page(run, asked))
    return RunPage(total=page.total, of=page.of, rows=[RunRow(**asdict(line)) for line in page.lines])


async def text(
    run: RunName, row: Annotated[int, Query(ge=0, le=2**62)], request: Request, here: Here
) -> list[dict[str, Any]]:
    """The explanations of one text of a run, as printed by `salience show --json`."""
    text = await here.work.run(request, READING, lambda: here.folders.browser(run).text(row))
    return [plain(e.to_dict()) for e in text.explanations.values()]


async def reports(request: Request, here: Here) -> list[Report]:
    """The saved pages below the folders of this server."""
    return await here.work.run(request, READING, here.folders.reports)


def router() -> APIRouter:
    made = APIRouter(prefix="/api", tags=["runs"], responses=REFUSED)
    made.add_api_route("/runs", runs, methods=["GET"])
    made.add_api_route("/runs/texts", texts, methods=["GET"])
    made.add_api_route("/runs/text", text, methods=["GET"])
    made.add_api_route("/reports", reports, methods=["GET"])
    return made
