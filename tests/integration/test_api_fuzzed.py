"""Requests made up from the API's own description: nothing breaks inside, and every answer is one that is described."""

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ledger.store import Store
from tests.api_kit import bearer, served, tokens_setting
from tests.job_kit import JobRig
from tests.rig import Rig

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 8
HEADERS = {"Host": "127.0.0.1", **bearer("a")}


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_made_up_requests(rig: Rig, store: Store, ledger_url: str, mode: GenerationMode) -> None:
    with JobRig(rig, store) as bench:
        settings_ = rig.settings(api__tokens=tokens_setting(), jobs__max_depth="100000")
        with served(settings_, ledger_url, bench.sender) as app:
            schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, headers=HEADERS)
            answers: Counter[int] = Counter()
            operations = [found.ok() for found in schema.get_all_operations()]
            for operation in operations:
                # A stream would be followed for an hour; and nothing can be made up where there is nothing to say.
                if operation.path.startswith("/api/") and not operation.path.endswith("/events"):
                    ask(operation, mode, answers)
    assert len(operations) >= 18
    assert max(answers) < 500
    assert {200, 422} <= set(answers), answers


def ask(operation: Any, mode: GenerationMode, answers: Counter[int]) -> None:
    @seed(1)
    @given(operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        database=None,
    )
    def one(case: Any) -> None:
        response = case.call(headers=HEADERS)
        answers[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    one()
