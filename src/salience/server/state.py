"""What the operations of a server share."""

from dataclasses import dataclass
from typing import cast

from fastapi import Request

from salience.server.folders import Folders
from salience.server.jobs import Jobs
from salience.server.limits import Limits
from salience.server.served import Served
from salience.server.work import Work

READING = "the runs"
"""The line of work that reads run folders."""


@dataclass(frozen=True, slots=True)
class State:
    served: Served
    work: Work
    limits: Limits
    folders: Folders
    jobs: Jobs


def state_of(request: Request) -> State:
    return cast(State, request.app.state.salience)
