"""Actual CPUs of a container's processes.

The runtime reports the value that it last requested. The kernel enforces the value in the cgroup, and only the cgroup
reflects a change by another process. The cgroup is found through the container's first process, whose PID the runtime
reports. It is used only if its name contains the container's ID, because the PID may have been reused by another
process. The file is `cpuset.cpus` in the cpuset hierarchy of cgroup v1, and `cpuset.cpus.effective` in cgroup v2. If no
file can be read, the runtime's value is used, in which an empty list means all CPUs.
Source: Linux Documentation/admin-guide/cgroup-v1/cpusets.rst and cgroup-v2.rst, proc_pid_cgroup(5).
"""

from __future__ import annotations

import re
from collections.abc import Collection

from hetsched.agent.cri import Runtime
from hetsched.agent.tree import Tree
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)
_V1, _V2 = "sys/fs/cgroup/cpuset", "sys/fs/cgroup"


class CpuReader:
    """Reader of the CPUs of containers; the path of each container's cpuset file is looked up once."""

    def __init__(self, tree: Tree, runtime: Runtime) -> None:
        self._tree = tree
        self._runtime = runtime
        self._files: dict[str, str] = {}

    def forget(self, present: Collection[str]) -> None:
        self._files = {one: file for one, file in self._files.items() if one in present}

    def cpus(self, container_id: str) -> frozenset[int] | None:
        """Return the container's CPUs; an empty set means all CPUs, None means unknown. Raises: RuntimeFailure."""
        if (found := self._read(container_id)) is not None:
            return found
        status = self._runtime.status(container_id)
        if status.pid is not None and (file := self._file(container_id, status.pid)) is not None:
            self._files[container_id] = file
            if (found := self._read(container_id)) is not None:
                return found
        return None if status.cpus is None else _parsed(status.cpus)

    def _read(self, container_id: str) -> frozenset[int] | None:
        file = self._files.get(container_id)
        text = None if file is None else self._tree.text(file)
        if text is None:
            self._files.pop(container_id, None)
            return None
        return _parsed(text)

    def _file(self, container_id: str, pid: int) -> str | None:
        """Return the cpuset file of a container, found through its process `pid`."""
        if not _CONTAINER_ID.fullmatch(container_id):
            return None
        for line in (self._tree.text(f"proc/{pid}/cgroup") or "").splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            parts = [part for part in path.split("/") if part]
            if ".." in parts or not any(container_id in part for part in parts):
                continue
            last = max(position for position, part in enumerate(parts) if container_id in part)
            place = "/".join(parts[: last + 1])
            if "cpuset" in controllers.split(","):
                return f"{_V1}/{place}/cpuset.cpus"
            if controllers == "" and self._tree.exists(f"{_V2}/cgroup.controllers"):
                return f"{_V2}/{place}/cpuset.cpus.effective"
        return None


def _parsed(text: str) -> frozenset[int] | None:
    try:
        return parse_cpuset(text)
    except InputError:
        return None
