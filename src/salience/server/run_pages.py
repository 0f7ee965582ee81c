"""The pages about run folders and saved reports. They work without scripts."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response

from salience.runs.browsing import ORDERS, Page
from salience.runs.browsing import Query as Question
from salience.runs.faithfulness import Faithfulness
from salience.runs.folder import ANSWERS
from salience.runs.run import Run
from salience.server.navigation import places
from salience.server.rendering import render
from salience.server.run_api import RunName, question
from salience.server.state import READING, State, state_of
from salience.views import answers
from salience.views.html import articles, text_of
from salience.views.sheet import label

Here = Annotated[State, Depends(state_of)]

NAMES = {
    "row": "as in the data",
    "confidence": "least confident first",
    "-confidence": "most confident first",
    "disagreement": "methods disagree most",
    "faithfulness": "least faithful first",
    "length": "shortest first",
    "-length": "longest first",
}
SAVED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"
"""The policy of saved pages: no scripts at all."""


async def runs(request: Request, here: Here) -> HTMLResponse:
    """All runs."""
    known = await here.work.run(request, READING, here.folders.runs)
    return render("runs.html", title="Runs", navigation=places(here), here="/runs", runs=known, answers=ANSWERS)


async def run(
    run: RunName, asked: Annotated[Question, Depends(question)], request: Request, here: Here
) -> HTMLResponse:
    """The table of one run."""
    browser = here.folders.browser(run)

    def read() -> tuple[Page, Faithfulness | None]:
        evaluation = here.folders.evaluation(run)
        return browser.page(asked, evaluation), evaluation

    page, evaluation = await here.work.run(request, READING, read)
    return render(
        "run.html",
        title=label(run),
        navigation=places(here),
        here="/runs",
        run=run,
        known=browser.run,
        page=page,
        asked=asked,
        orders=[(order, NAMES[order]) for order in ORDERS if order not in _missing(browser.run, evaluation)],
        evaluation=evaluation,
        labels=browser.labels(),
        predictions=browser.predictions(),
        link=lambda first: f"/run?{urlencode({**_given(request), 'first': max(0, first)})}",
    )


def _missing(run: Run, evaluation: Faithfulness | None) -> list[str]:
    """The orders that a run cannot be shown in."""
    alone = ["disagreement"] if len(run.methods) < 2 else []
    return [*alone, *(["faithfulness"] if evaluation is None else [])]


def _given(request: Request) -> dict[str, str]:
    return dict(request.query_params)


async def text(run: RunName, row: int, request: Request, here: Here, level: str = "word") -> HTMLResponse:
    """One text of a run."""
    browser = here.folders.browser(run)
    explained = await here.work.run(request, READING, lambda: browser.text(row))
    shown = articles(list(explained.explanations.values()), level)
    return render(
        "run_text.html",
        title=f"{label(run)}: {label(explained.id)}",
        navigation=places(here),
        here="/runs",
        run=run,
        row=row,
        text=explained.first.text,
        pair=explained.first.pair_at is not None,
        shown=shown,
    )


async def answer_run(run: RunName, request: Request, here: Here, first: int = 0) -> HTMLResponse:
    """Some explained answers of a run."""
    count = 5

    def read() -> str:
        rows = list(here.folders.answers(run).rows(first=max(0, first) + count))[max(0, first) :]
        return "".join(f"<h2>{text_of(name)}</h2>{answers.articles(row)}" for name, row in rows)

    shown = await here.work.run(request, READING, read)
    return render(
        "answer_run.html",
        title=label(run),
        navigation=places(here),
        here="/runs",
        run=run,
        shown=shown,
        first=first,
        count=count,
        of=len(here.folders.answers(run)),
    )


async def reports(request: Request, here: Here) -> HTMLResponse:
    """All saved pages."""
    known = await here.work.run(request, READING, here.folders.reports)
    return render("reports.html", title="Reports", navigation=places(here), here="/reports", reports=known)


async def report(name: str, here: Here) -> HTMLResponse:
    """A saved page within ours."""
    here.folders.report(name)
    address = f"/reports/saved?{urlencode({'name': name})}"
    return render("report.html", title=label(name), navigation=places(here), here="/reports", address_of_report=address)


async def saved(name: str, here: Here) -> Response:
    """A saved page as it is; it may run and load nothing."""
    return Response(
        here.folders.report(name), media_type="text/html; charset=utf-8", headers={"content-security-policy": SAVED}
    )


def router() -> APIRouter:
    made = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    for place, page in (
        ("/runs", runs),
        ("/run", run),
        ("/run/text", text),
        ("/run/answers", answer_run),
        ("/reports", reports),
        ("/report", report),
        ("/reports/saved", saved),
    ):
        made.add_api_route(place, page, methods=["GET"])
    return made
