"""Backlog of scheduler_perf: measured pods are created while the scheduler is suspended."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from hetsched.cli.bench.cluster_objects import PodWatch
from hetsched.cli.bench.scheduler_perf.configuration import PerfWorkload
from hetsched.cli.bench.scheduler_perf.execution import _Run
from hetsched.cli.bench.scheduler_perf.objects import ObjectFactory
from hetsched.cli.bench.scheduler_perf.operations import CreatePods
from tests.unit.cli.calling import run

SLOW_SECONDS = 0.2


class Objects:
    """API server that notes the state of the scheduler's process with each new pod, and creates pods slowly."""

    def __init__(self, scheduler: int) -> None:
        self.states: list[str] = []
        self._scheduler, self._names = scheduler, 0

    def namespace(self, name: str) -> None: ...

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self._names += 1
        return body | {"metadata": {"name": f"pod-{self._names}"}}

    def post(self, *_: object) -> None:
        self.states.append(Path(f"/proc/{self._scheduler}/stat").read_text().rpartition(")")[2].split()[0])
        time.sleep(SLOW_SECONDS)


class Bound:
    """Watch that shows every pod as bound at once."""

    def __init__(self) -> None:
        self.bound: dict[str, float] = {}

    def wait_for(self, keys: dict[str, float], **_: object) -> set[str]:
        self.bound = dict.fromkeys(keys, time.monotonic())
        return set()


@pytest.fixture
def scheduler() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
@pytest.mark.parametrize("backlog", [True, False])
def test_measured_pods_are_created_while_the_scheduler_is_suspended(
    scheduler: subprocess.Popen[bytes], backlog: bool
) -> None:
    objects, operation = Objects(scheduler.pid), CreatePods(count=2, collect_metrics=True)
    workload = PerfWorkload("Basic/5Nodes", (operation,), {}, {})
    measured = _Run(cast(ObjectFactory, objects), cast(PodWatch, Bound()), workload, scheduler, Path("log"), backlog)
    measured._perform(operation, "pods")
    assert [state == "T" for state in objects.states] == [backlog, backlog]
    # the creation of the pods, SLOW_SECONDS, is part of the time without a backlog only
    assert (measured._measurement.waited[0] < 1000 * SLOW_SECONDS) is backlog
    assert (measured._measurement.rate > 2 / SLOW_SECONDS) is backlog


def test_backlog_needs_the_suite() -> None:
    result = run("bench", "cluster", "--backlog")
    assert result.exit_code == 2
    assert "OptionInvalid" in result.stderr
    assert "--suite scheduler-perf" in result.stderr
