"""`hetsched bench watch` follows a server with prepared lists, and finds every pod in the ledger."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.system.processes import ROOT, plain_environment, python

pytestmark = pytest.mark.timeout(400)


def test_every_reported_pod_is_found() -> None:
    command = python("-m", "hetsched.cli", "bench", "watch", "--quick", "-o", "json")
    done = subprocess.run(command, env=plain_environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    # 200 running pods; of 500 events in a second four fifths are added pods
    assert found["checks"] == {"compared": 600, "different": 0}
    cases = {row["case"]: row["unit"] for row in found["rows"]}
    assert cases["first list in the ledger"] == "s"
    assert cases["event to ledger, p99"] == "ms"
    assert cases["memory, the most"] == "MiB"
