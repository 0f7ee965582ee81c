"""The JSON API about work in the background."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from salience.server import tasks
from salience.server.jobs import Task
from salience.server.problems import REFUSED
from salience.server.schemas import JobState, StartJob
from salience.server.state import State, state_of

Here = Annotated[State, Depends(state_of)]
JobName = Annotated[str, Path(max_length=50)]


def _task(question: StartJob, here: State) -> tuple[str, Task]:
    """What a job is called, and what it does."""
    if question.work == "words":
        return f"words of {question.run}", tasks.counting(here.folders.browser(question.run))
    if question.work == "compare":
        runs = [here.folders.browser(name) for name in (question.run, question.other)]
        return f"compare {question.run} and {question.other}", tasks.comparing(*runs)
    tasks.check(question, here.limits)
    name = here.served.classifier(question.model)
    make = {"explain": tasks.explaining, "evaluate": tasks.evaluating, "audit": tasks.auditing}[question.work]
    count = len(question.texts)
    return f"{question.work} {count} text{'s' * (count > 1)} by {name}", make(here.served.models[name], question)


async def start(question: StartJob, here: Here) -> JobState:
    """Start long work in the background."""
    return here.jobs.start(*_task(question, here))


async def jobs(here: Here) -> list[JobState]:
    """The jobs that wait, run or have ended, the latest first."""
    return here.jobs.states()


async def job(name: JobName, here: Here) -> JobState:
    """How far a job is."""
    return here.jobs.state(name)


async def cancel(name: JobName, here: Here) -> JobState:
    """End a job before its next pass."""
    return here.jobs.cancel(name)


def router() -> APIRouter:
    made = APIRouter(prefix="/api/jobs", tags=["jobs"], responses=REFUSED)
    made.add_api_route("", start, methods=["POST"])
    made.add_api_route("", jobs, methods=["GET"])
    made.add_api_route("/{name}", job, methods=["GET"])
    made.add_api_route("/{name}", cancel, methods=["DELETE"])
    return made
