"""SQL statements of a submission, compared with the table of docs/explanation/statements-of-a-pod.md."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hetsched.placement import quotas
from hetsched.placement.actions import submissions
from tests.workers.test_statement_budget import PAGE, statements_of

from .conftest import POD, Api

ROW = re.compile(r"^\| (submit over REST|repeat with the same key) \| (\d+) \| (\d+) \|$", re.MULTILINE)


def budget() -> dict[str, tuple[int, int]]:
    """Return the statements of each request from the page, on SQLite and on PostgreSQL."""
    return {request: (int(sqlite), int(postgres)) for request, sqlite, postgres in ROW.findall(PAGE.read_text())}


def test_statements_of_a_submission_equal_the_page(
    operator: Api, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "counts_are_due", lambda cluster_id: False)  # published once per second
    monkeypatch.setattr(quotas, "COUNTED_SECONDS", float("inf"))

    def submit(name: str, text: str) -> list[str]:
        pods = text.replace("name: web", f"name: {name}")
        headers = {"kind": "application/yaml", "Idempotency_Key": f"key-{name}"}
        return statements_of(lambda: operator("POST", "workloads/?cluster=lab", pods, status=202, **headers))

    submit("first", POD)  # compiles the prepared statements and records the use of the token
    alone, repeated = submit("alone", POD), submit("alone", POD)
    counted = {"submit over REST": len(alone), "repeat with the same key": len(repeated)}
    expected = {request: sqlite for request, (sqlite, _) in budget().items()}
    assert counted == expected, "\n".join(["", *(sql[:150] for sql in alone)])
    two = "---\n".join([POD, POD.replace("name: web", "name: other")])
    assert len(submit("two", two)) == len(alone)
