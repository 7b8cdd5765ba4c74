"""Requests that Schemathesis makes of an OpenAPI document, right and wrong ones, and what it says of the answers."""

from __future__ import annotations

import re
from typing import Any

import hypothesis
from schemathesis import checks
from schemathesis.generation import GenerationMode
from schemathesis.schemas import BaseSchema

from tests.examples import examples

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


def attack(schema: BaseSchema, path: str, headers: dict[str, str], *, nightly: int = 100) -> int:
    """Send requests to each path that matches; give how many operations there are."""
    count = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if not re.search(path, operation.path):
            continue
        count += 1
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @hypothesis.settings(
                max_examples=examples(nightly), suppress_health_check=list(hypothesis.HealthCheck), deadline=None
            )
            @hypothesis.given(case=operation.as_strategy(mode))
            def test(case: Any) -> None:
                case.call_and_validate(headers=headers, checks=CHECKS)

            test()
    return count
