"""`hetsched bench watch` follows a server with prepared lists, and finds every pod in the ledger."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext
from typing import Any

import pytest

from tests.system.databases import postgres
from tests.system.processes import ROOT, plain_environment, python

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("database", ["SQLite", pytest.param("PostgreSQL", marks=pytest.mark.needs("postgres"))])
def test_every_reported_pod_is_found(database: str) -> None:
    with postgres() if database == "PostgreSQL" else nullcontext() as server:
        found = bench(*(["--database", server.url] if server else []))
    assert found["machine"]["database"].startswith(database)
    # 200 running pods; of 500 events in a second four fifths are added pods
    assert found["checks"] == {"compared": 600, "different": 0}
    cases = {row["case"]: row["unit"] for row in found["rows"]}
    assert cases["first list in the ledger"] == "s"
    assert cases["event to ledger, p99"] == "ms"
    assert cases["memory, the most"] == "MiB"
    assert ("events, CPU of postgres" in cases) == (database == "PostgreSQL")


def bench(*words: str) -> dict[str, Any]:
    command = python("-m", "hetsched.cli", "bench", "watch", "--quick", "-o", "json", *words)
    done = subprocess.run(command, env=plain_environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
