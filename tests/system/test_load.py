"""`make load` at a size of seconds: nothing is lost or duplicated, and the report contains the results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.load import planes
from tests.load.client import percentiles
from tests.load.parts import flood, invariants, listeners
from tests.load.report import Part, write

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def plane() -> Iterator[planes.Plane]:
    with planes.embedded(20, webs=2) as found:
        yield found


def counted(part: Part) -> dict[str, str]:
    """Return the results of the goals that do not depend on the speed of this machine."""
    return {goal.what: goal.found for goal in part.goals if goal.goal == "0"}


def test_retried_burst_over_two_web_processes_is_exact(plane: planes.Plane, tmp_path: Path) -> None:
    part = flood(plane, 60, 8)

    assert set(counted(part).values()) == {"0"}, counted(part)
    # 60 submissions, 20 % of them repeated: 12 additional responses, each equal to the first one.
    assert part.answers == {"202": 72}
    assert part.counts["answered again"] == 12
    assert invariants(plane) == []

    write([part], tmp_path, "load")
    document = json.loads((tmp_path / "load.json").read_text())
    assert document["machine"]["cores"] >= 1
    assert document["parts"][0]["durations"][0]["n"] == 72
    page = (tmp_path / "load.html").read_text()
    assert "burst with retries" in page
    assert "<script" not in page
    assert "src=" not in page


def test_sockets_recover_after_a_kill_of_every_web_process(plane: planes.Plane) -> None:
    part = listeners(plane, 12, 5, 2)

    assert set(counted(part).values()) == {"0"}, counted(part)
    back = next(durations for durations in part.durations if durations.what == "back after the drop")
    assert back.n == 12


def test_percentile_is_a_measured_value() -> None:
    # Of 1 to 200 ms, the smallest value that 99 % do not exceed is the 198th.
    found = dict(percentiles([number / 1000 for number in range(1, 201)]))

    assert found == {"p50": 100, "p90": 180, "p95": 190, "p99": 198, "p99.9": 200, "max": 200}
    assert dict(percentiles([])) == {}
