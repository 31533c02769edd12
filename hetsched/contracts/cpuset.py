"""CPU lists in the format of Linux.

Text such as "0-3,8" lists CPUs in sysfs, cgroups and annotations. It consists of comma-separated IDs (0-65535) and
ascending ranges; white space is allowed only around the whole text. Lists are written sorted, with adjacent IDs merged.
Source: k8s.io/utils/cpuset; Linux Documentation/admin-guide/cgroup-v2.rst (cpuset.cpus), cpumap list format.
Invariant: `parse_cpuset(format_cpuset(s)) == s`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .errors import InputError
from .message import Message

MAX_CPU_ID = 65_535
_ITEM = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


def parse_cpuset(text: str) -> frozenset[int]:
    """Return the CPU IDs that `text` lists; the empty string is an empty list.

    Raises: InputError `CpusetMalformed`.
    """
    stripped = text.strip()
    if not stripped:
        return frozenset()
    ranges: list[tuple[int, int]] = []
    for item in stripped.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise InputError(
                "CpusetMalformed",
                Message("{text} is not a valid CPU list", text=repr(text[:80])),
                hint="Use ids and ranges, such as 0-3,8",
            )
        first = int(match[1])
        last = int(match[2] or first)
        if last < first or last > MAX_CPU_ID:
            raise InputError(
                "CpusetMalformed", Message("{text} is not an ascending range up to {n}", text=repr(item), n=MAX_CPU_ID)
            )
        ranges.append((first, last))
    # Each ID is added once, so the cost does not grow with repetitions in a long text.
    cpus: list[int] = []
    following = 0
    for first, last in sorted(ranges):
        cpus.extend(range(max(first, following), last + 1))
        following = max(following, last + 1)
    return frozenset(cpus)


def format_cpuset(cpus: Iterable[int]) -> str:
    """Format CPU IDs as the shortest list: sorted, with adjacent IDs merged."""
    ordered = sorted(set(cpus))
    runs: list[tuple[int, int]] = []
    for cpu in ordered:
        if runs and cpu == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], cpu)
        else:
            runs.append((cpu, cpu))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
