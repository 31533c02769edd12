"""CPU time, memory and suspension of processes under measurement.

On Linux, the CPU time is read from `/proc`: the user and system time of a process and of all its running descendants.
Other systems yield no result. The time of processes that ended between two measurements is not included.
Source: proc(5).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_PROC = Path("/proc")
# Command-line words that identify hetsched's processes. Other processes are identified by the name of their program.
_ROLES = {
    "watch": "watch",
    "worker": "worker",
    "preview": "worker",
    "beat": "beat",
    "web": "uvicorn",
    "hetsched.project.beat": "beat",
    "hetsched.project.web_server": "uvicorn",
}
# Names of processes that a supervisor has forked; their command line is that of the supervisor.
_FORKED = re.compile(r"(watch|worker|preview|beat|web)(-\d+)?")


def cpu_of(*roots: int, api_port: int = 0) -> dict[str, float]:
    """Return CPU time in seconds by program, for process trees and a local API server with its etcd."""
    found = _all()
    wanted = {pid for root in roots for pid in _descendants(root, found)}
    servers = {pid for pid, (_, words, _) in found.items() if api_port and f"--secure-port={api_port}" in words}
    parents = {found[pid][0] for pid in servers}
    etcd = {pid for pid, (parent, words, _) in found.items() if parent in parents and _program(words) == "etcd"}
    seconds: dict[str, float] = defaultdict(float)
    for pid in wanted | servers | etcd:
        _, words, used = found[pid]
        seconds[_program(words)] += used
    return dict(seconds)


def memory_of(root: int) -> dict[str, float]:
    """Return memory in MiB by program for a process tree; processes of one program are summed.

    Each process counts its share of the memory that it has in common with others (`Pss`).
    """
    found = _all()
    mib: dict[str, float] = defaultdict(float)
    for pid in _descendants(root, found):
        try:
            kib = int((_PROC / str(pid) / "smaps_rollup").read_text().partition("\nPss:")[2].split()[0])
        except (OSError, IndexError):  # the process ended; a zombie has no memory
            continue
        mib[_program(found[pid][1])] += kib / 2**10
    return dict(mib)


def pids_of(root: int, role: str) -> list[int]:
    """Return the process IDs of a program in a process tree."""
    found = _all()
    return sorted(pid for pid in _descendants(root, found) if _program(found[pid][1]) == role)


@contextlib.contextmanager
def suspended(root: int) -> Iterator[None]:
    """Context manager that suspends a process tree with SIGSTOP, parents first, and resumes it at the end.

    Raises: ProcessLookupError if the process is not found, as on all systems without `/proc`.
    """
    if root not in _all():
        raise ProcessLookupError(root)
    pids: list[int] = []
    try:
        while new := sorted(_descendants(root, _all()) - set(pids)):  # a process may have forked in between
            pids += new
            _signal(new, signal.SIGSTOP)
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def parent_of(pid: int) -> int:
    """Return the process ID of a process's parent. Raises: OSError if the process does not exist."""
    return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def used_seconds(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the CPU seconds that each program used between two results of `cpu_of`, in descending order."""
    used = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
    return dict(sorted(used.items(), key=lambda item: -item[1]))


def _all() -> dict[int, tuple[int, list[str], float]]:
    """Return the parent, the command line and the CPU time in seconds of every process, by process ID."""
    tick = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    found: dict[int, tuple[int, list[str], float]] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # the process ended while it was read
        name, fields = stat.partition("(")[2].rpartition(")")[0], stat.rpartition(")")[2].split()
        if forked := _FORKED.fullmatch(name):
            words = [forked[1]]
        found[int(folder.name)] = int(fields[1]), words, (int(fields[11]) + int(fields[12])) / tick
    return found


def _descendants(root: int, found: Mapping[int, tuple[int, list[str], float]]) -> set[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for pid, (parent, _, _) in found.items():
        children[parent].append(pid)
    below, waiting = set(), [root] if root in found else []
    while waiting:
        pid = waiting.pop()
        below.add(pid)
        waiting += children[pid]
    return below


def _program(words: list[str]) -> str:
    role = next((role for word, role in _ROLES.items() if word in words), "")
    # Redis appends its address to its process title, and a process of PostgreSQL its task.
    return role or Path(re.sub(r" (unixsocket:|\S+:\d).*|(?<=^postgres):.*", "", words[0])).name or "?"
