"""Schedulers under test: their command lines, and their processes during a measurement."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from hetsched.lab.bench.processes import cpu_of

from .databases import new_database

# A scheduler is idle once it has used few cores for longer than the pause between its reports, at most 4 s for hetsched
# (`informer_host.MAX_REPORT_SECONDS`, and a second if another run of reports is in progress).
_SETTLED_CORES, _SETTLED_SECONDS, _SETTLE_SECONDS = 0.1, 5.0, 60.0
_STOP_SECONDS = 30


class Rival(msgspec.Struct, frozen=True):
    """Scheduler under test.

    `case` labels its results, `name` is the schedulerName of its pods, and `command` returns its command line, given a
    kubeconfig and a working folder. `database` is the URL of a PostgreSQL server on which each run gets a database.
    """

    case: str
    name: str
    command: Callable[[Path, Path], Sequence[str]]
    database: str = ""


class RunningScheduler(NamedTuple):
    """Process of a scheduler, and the roots of all process trees that belong to it, with a local database server."""

    process: subprocess.Popen[bytes]
    roots: tuple[int, ...]


def hetsched(database: str = "") -> Rival:
    """Return hetsched as a standalone scheduler without web processes.

    Its database is SQLite in the working folder, or on the PostgreSQL server with the URL `database`.
    """

    def command(kubeconfig: Path, folder: Path) -> Sequence[str]:
        words = [sys.executable, "-m", "hetsched.cli", "scheduler", "--no-web", "--name", "bench"]
        return [*words, "--kubeconfig", str(kubeconfig), "--data", str(folder / "data")]

    return Rival("hetsched", "hetsched", command, database)


def kube_scheduler(
    program: Path, *, case: str = "kube-scheduler", percentage: int = 0, arguments: Sequence[str] = ()
) -> Rival:
    """Return kube-scheduler with the client limits of scheduler_perf.

    `percentage` is percentageOfNodesToScore, 0 for the default sampling; `arguments` are added to the command line.
    """

    def command(kubeconfig: Path, folder: Path) -> Sequence[str]:
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 10000},
            "percentageOfNodesToScore": percentage,
        }
        written = folder / f"kube-scheduler-{percentage}.json"
        written.write_text(json.dumps(configuration))
        return [
            str(program), f"--config={written}", "--secure-port=0",
            f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}", *arguments,
        ]  # fmt: skip

    return Rival(case, "default-scheduler", command)


def binding_only() -> Rival:
    """Return the scheduler that only binds, whose figures are the limit of the API server."""

    def command(kubeconfig: Path, folder: Path) -> Sequence[str]:
        return [sys.executable, "-m", "hetsched.cli.bench.binding_only", str(kubeconfig)]

    return Rival("bindings only", "binding-only", command)


@contextlib.contextmanager
def run_scheduler(rival: Rival, kubeconfig: Path, folder: Path) -> Iterator[RunningScheduler]:
    """Context manager that runs a scheduler, with its output in `folder`/log, and interrupts it at the end."""
    with new_database(rival.database) as database:
        with (folder / "log").open("ab") as output:
            process = subprocess.Popen(
                rival.command(kubeconfig, folder), env=database.environment(),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        try:
            yield RunningScheduler(process, (process.pid, *database.pids))
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_idle(root: int) -> None:
    """Wait until a process tree is nearly idle, so that events of the previous phase do not affect the next one."""
    began = busy_at = time.monotonic()
    while time.monotonic() - busy_at < _SETTLED_SECONDS and time.monotonic() - began < _SETTLE_SECONDS:
        before = sum(cpu_of(root).values())
        time.sleep(1.0)
        if sum(cpu_of(root).values()) - before >= _SETTLED_CORES:
            busy_at = time.monotonic()
