"""SQL statements of a submission, compared with the table of docs/explanation/statements-of-a-pod.md."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection

from hetsched.placement import quotas
from hetsched.placement.actions import submissions
from tests.workers.test_statement_budget import PAGE, statements_of

from .conftest import POD, Api

ROW = re.compile(r"^\| (submit over REST|repeat with the same key) \| (\d+) \|$", re.MULTILINE)


def test_statements_of_a_submission_equal_the_page(
    operator: Api, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "counts_are_due", lambda cluster_id: False)  # published once per second
    monkeypatch.setattr(quotas, "SHORT_SECONDS", float("inf"))  # a short queue is counted once per second

    def submit(name: str, text: str) -> list[str]:
        pods = text.replace("name: web", f"name: {name}")
        headers = {"kind": "application/yaml", "Idempotency_Key": f"key-{name}"}
        return statements_of(lambda: operator("POST", "workloads/?cluster=lab", pods, status=202, **headers))

    submit("first", POD)  # compiles the prepared statements and records the use of the token
    locks = connection.vendor == "postgresql"  # SQLite needs no lock of the namespace
    budget = {request: int(number) for request, number in ROW.findall(PAGE.read_text())}
    alone, repeated = submit("alone", POD), submit("alone", POD)
    counted = {"submit over REST": len(alone) + (not locks), "repeat with the same key": len(repeated)}
    assert counted == budget, "\n".join(["", *(sql[:150] for sql in alone)])
    two = "---\n".join([POD, POD.replace("name: web", "name: other")])
    assert len(submit("two", two)) == len(alone)
