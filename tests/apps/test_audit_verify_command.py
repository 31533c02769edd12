"""`hetsched audit verify` reads the whole audit trail: exit code 0 if it matches its seals, 1 if it does not."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import typer
from django.db import connection

from hetsched.cli.output import OutputFormat
from hetsched.cli.server.audit import verify
from hetsched.journal.audit import SYSTEM, record_many
from hetsched.journal.chain import seal_new

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def sealed() -> None:
    record_many(SYSTEM, "node.cordon", [(("node", f"n{number}"), "", {}) for number in range(3)])
    seal_new(settled=timedelta(0))


def asked(capsys: pytest.CaptureFixture[str], head: str = "") -> tuple[int, dict[str, object]]:
    code = 0
    try:
        verify(head=head, output=OutputFormat.JSON)
    except typer.Exit as end:
        code = end.exit_code
    return code, json.loads(capsys.readouterr().out)


def test_intact_trail_is_reported_with_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = asked(capsys)
    assert (code, result["seals"], result["sealed"], result["broken"]) == (0, 1, 3, [])
    assert asked(capsys, str(result["head"]))[0] == 0


def test_missing_noted_head_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = asked(capsys, "0" * 64)
    assert (code, result["headLost"], result["broken"]) == (1, True, [])


def test_missing_entry_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM journal_auditentry WHERE object_name = 'n1'")
    code, result = asked(capsys)
    (broken,) = result["broken"]  # type: ignore[misc]
    assert (code, broken["problem"]) == (1, "3 entries were sealed, but 2 entries exist")
