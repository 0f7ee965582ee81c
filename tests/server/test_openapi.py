"""schemathesis asks what the OpenAPI document allows: no answer is an error of the server, and all are documented."""

from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]
LEFT_OUT = ("/api/answer",)
"""Every call of it generates a text."""


@pytest.fixture(scope="module")
def operations(app: FastAPI) -> dict[str, Any]:
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    known = [result.ok() for result in schema.get_all_operations()]
    return {f"{one.method.upper()} {one.path}": one for one in known if one.path not in LEFT_OUT}


def test_no_request_breaks_the_server(operations: dict[str, Any]):
    assert {"POST /api/explain", "POST /api/edit", "GET /api/runs/texts", "POST /api/jobs"} <= operations.keys()
    for operation in operations.values():

        @given(case=operation.as_strategy())
        @settings(max_examples=6, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        def ask(case: Any) -> None:
            if isinstance(case.body, dict) and "work" in case.body:
                case.body["texts"] = []  # no work is started
            case.call_and_validate(checks=CHECKS)

        ask()
