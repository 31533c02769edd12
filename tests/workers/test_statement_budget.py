"""SQL statements on the path of a pod, compared with the table of docs/explanation/statements-of-a-pod.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import TestCase

from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.placement import dispatch, scheduler_cache
from hetsched.placement.actions import apply_changes, confirm
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod
from hetsched.placement.queries import pod_counts
from hetsched.placement.scheduler_cache import cache_of
from hetsched.scheduling import arrivals
from hetsched.scheduling.arrivals import ArrivalScheduler
from hetsched.scheduling.scheduling_loop import SchedulingLoop
from tests.builders import a_node, a_pod
from tests.situations import BindingHost, a_live_cluster, acquire_lease, arrived

pytestmark = pytest.mark.django_db
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "statements-of-a-pod.md"
ROW = re.compile(r"\| (?P<step>[^|]+?) +\|.*\| +(?P<alone>\d+) +\| +(?P<postgres>\d+) +\| +(?P<together>\d+) +\|$")
TOGETHER = 200


def statements_of(call: Callable[[], object]) -> list[str]:
    """Run a function and return its SQL statements; a statement with many rows of values is one statement."""
    texts: list[str] = []

    def wrapper(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not sql.startswith(("SAVEPOINT", "RELEASE")):
            texts.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        call()
    return texts


def some_pods(name: str, count: int, cpus: float) -> list[ObservedPod]:
    specs = [a_pod(f"{name}-{n}").cpu(cpus).having(uid=f"uid-{name}-{n}").build() for n in range(count)]
    return [ObservedPod(spec.namespace, spec.name, spec.uid, scheduler_name="hetsched", spec=spec) for spec in specs]


class PodPath:
    """A live cluster of 50 nodes with 8 CPUs, and the steps of pods on it."""

    def __init__(self) -> None:
        self.cluster = a_live_cluster()
        apply_changes(self.cluster.pk, Changes(nodes=[a_node(f"n{n}").build() for n in range(50)]), epoch=1)
        self.lease = acquire_lease(self.cluster)
        self.arrivals = ArrivalScheduler(cache_of(self.cluster.pk), self.cluster.name)
        self.loop = SchedulingLoop(BindingHost(), self.cluster.pk, self.cluster.name, TOGETHER)

    def walk(self, name: str, count: int) -> dict[str, Sequence[str]]:
        """Take `count` pods that fit and `count` pods that do not along their paths; return each step's statements."""
        fitting, large = some_pods(name, count, 0.5), some_pods(f"{name}-large", count, 9)
        with TestCase.captureOnCommitCallbacks(execute=True):  # the process keeps its committed placements
            waiting = arrived(fitting)
            placed = statements_of(lambda: self.arrivals.place(waiting, self.lease, 1, most=TOGETHER))
            found = {"place arriving pods": placed}
        bound = list(Pod.objects.filter(name__in=[pod.name for pod in fitting]).values_list("id", flat=True))
        assert len(bound) == count
        found["confirm bindings and write effects"] = statements_of(lambda: confirm(self.cluster.pk, bound))
        with cache_of(self.cluster.pk).locked_snapshot():
            pass
        found["add pods to the queue"] = statements_of(
            lambda: apply_changes(self.cluster.pk, Changes(pods=large), epoch=1)
        )
        found["decide pods of the queue"] = statements_of(lambda: self.loop.iterate(self.lease))
        assert Pod.objects.filter(state=State.NEVER_FITS.value, name__startswith=f"{name}-large-").count() == count
        ended = [ObservedPod(pod.namespace, pod.name, pod.uid, ended=State.SUCCEEDED.value) for pod in fitting]
        found["release ended pods"] = statements_of(
            lambda: apply_changes(self.cluster.pk, Changes(pods=ended), epoch=1)
        )
        return found


def statements_of_each_step() -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """Return the statements of each step, for one pod and for `TOGETHER` pods."""
    path = PodPath()
    path.walk("first", 2)  # compiles the prepared statements and loads policies
    alone, together = path.walk("alone", 1), path.walk("together", TOGETHER)
    return {step: (alone[step], together[step]) for step in alone}


def limit_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the number of statements independent of the duration of the steps."""
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    monkeypatch.setattr(pod_counts, "COUNT_SECONDS", 0.0)  # publish the counts in every transaction
    monkeypatch.setattr(arrivals, "LONGEST_SECONDS", 60.0)  # place all pods together, also on a busy machine
    monkeypatch.setattr(scheduler_cache, "NOTED_SECONDS", float("inf"))  # short decisions write no decision time


def budget() -> dict[str, tuple[int, int, int]]:
    """Return the statements of each step from the page: for one pod, also on PostgreSQL, and for `TOGETHER` pods."""
    rows = map(ROW.match, PAGE.read_text().splitlines())
    return {row["step"]: (int(row["alone"]), int(row["postgres"]), int(row["together"])) for row in rows if row}


def test_statements_of_each_step_equal_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_statements(monkeypatch)
    steps = statements_of_each_step()
    counted = {step: (len(alone), len(together)) for step, (alone, together) in steps.items()}
    stated = {step: (alone, together) for step, (alone, _, together) in budget().items()}
    assert counted == stated, "\n".join(["", *(f"{step}: {sql[:150]}" for step in steps for sql in steps[step][0])])
