"""What the operations of a server share."""

from dataclasses import dataclass
from typing import cast

from fastapi import Request

from salience.server.limits import Limits
from salience.server.served import Served
from salience.server.work import Work


@dataclass(frozen=True, slots=True)
class State:
    served: Served
    work: Work
    limits: Limits


def state_of(request: Request) -> State:
    return cast(State, request.app.state.salience)
