"""SIGKILL of the process that writes the effects of placements, at each of its steps: nothing is lost or doubled.

The effects are written by the process that committed the placements, from its memory, or by the process that takes
over, from the rows; both are killed. HETSCHED_TEST_PROJECTION_KILLS sets the number of repetitions of each step;
without it, only the riskiest steps are tried, once.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.fault_table import Faults
from tests.system.faulty import EFFECT_STEPS
from tests.system.plane import BACKENDS, Plane

REPEATS = int(os.environ.get("HETSCHED_TEST_PROJECTION_KILLS", "0"))
TRIED = tuple(EFFECT_STEPS) if REPEATS else ("e3", "e6", "e9", "e10")
PODS = 24
pytestmark = pytest.mark.chaos


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "backend",
    ["sqlite-valkey", pytest.param("postgres-redis", marks=pytest.mark.needs("postgres", "redis-server"))],
)
def test_effects_are_written_once_after_a_kill_at_any_step(backend: str, tmp_path: Path, faults: Faults) -> None:
    with BACKENDS[backend]() as plane:
        assert plane.driver
        plane.driver("add_live_cluster", log=str(tmp_path / "sent"))
        kills = placed = repeated = 0
        for number in range(REPEATS or 1):
            for step in TRIED:
                for writer in ("memory", "rows"):
                    kills += _kill(plane, tmp_path / f"{number}-{step}-{writer}", step, writer)
                    placed += PODS
                    faults.size = f"{kills} kills at {len(TRIED)} steps, {placed} placements"
                    where = f"{backend}, {step}, {writer}"
                    again = _count(plane, tmp_path, faults, where, placed)
                    # Only an event that was sent, but not marked, is sent again; clients discard it by its position.
                    assert (again > repeated) == (step == "e10"), where
                    repeated = again
        faults.add("lost", plane.driver("differing_pages"))
        faults.assert_none(backend)


def _kill(plane: Plane, folder: Path, step: str, writer: str) -> int:
    """Kill a process at a step of the effects of its own placements, or of the rows of a process that was killed before
    it wrote any; let another process write the remaining effects. Return the number of kills.
    """
    folder.mkdir()
    steps = [step] if writer == "memory" else ["e1", step]
    prefix, kills = folder.name, 0
    for number, reached in enumerate(steps):
        points = folder / str(number)
        points.mkdir()
        wish = {"die": [reached], "folder": str(points)}
        code = _project(plane, wish, prefix, 0 if number else PODS)
        assert (code, [path.name for path in points.iterdir()]) == (-signal.SIGKILL, [reached]), prefix
        kills += 1
    assert _project(plane, None, prefix, 0) == 0
    return kills


def _project(plane: Plane, wish: dict[str, object] | None, prefix: str, pods: int) -> int:
    assert plane.driver
    return int(plane.driver("project", prefix=prefix, pods=pods, wish=wish))


def _count(plane: Plane, folder: Path, faults: Faults, where: str, placed: int) -> int:
    """Count the faults in the rows of all placements so far; return how many events were sent again so far."""
    assert plane.driver
    ask = plane.driver
    found = ask("projection_counts", log=str(folder / "sent"))
    faults.add("lost", range(found["lost"] + placed - ask("live_states").get("binding", 0)))
    faults.add("bound twice", [*range(found["doubled"]), *ask("violations")])
    faults.assert_none(where)
    return int(found["repeated"])


def test_missing_and_repeated_effects_are_counted(tmp_path: Path) -> None:
    with BACKENDS["sqlite-valkey"]() as plane:
        assert plane.driver
        ask, log = plane.driver, tmp_path / "sent"
        ask("add_live_cluster", log=str(log))
        assert ask("project", prefix="p", pods=4) == 0
        assert ask("projection_counts", log=str(log)) == {"lost": 0, "doubled": 0, "repeated": 0}
        entry = (
            "from hetsched.journal.models import AuditEntry, OutboxEvent; from hetsched.journal.audit import record; "
        )
        ask(
            "execute",
            code=entry + "row = AuditEntry.objects.filter(action='workload.submit').first(); "
            "record(actor='a', action=row.action, obj=(row.object_kind, row.object_name), details={'pods': 0}); "
            "OutboxEvent.objects.order_by('id').last().delete()",
        )
        assert ask("projection_counts", log=str(log)) == {"lost": 1, "doubled": 2, "repeated": 0}
