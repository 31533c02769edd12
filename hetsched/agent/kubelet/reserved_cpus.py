"""CPUs that a kubelet reserves if only their number is configured.

`kubeReserved: {cpu: 500m}` reserves certain CPUs under the static policy, and no file names them. They are chosen as
the kubelet chooses CPUs for a container: whole zones, then whole sockets (sockets first if they have several zones),
then whole cores, then threads; each level from the fewest free CPUs up, from the coarsest level down, then by ID.
Source: kubernetes pkg/kubelet/cm/cpumanager/cpu_assignment.go (packed order, 1.36).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hetsched.contracts.messages.agent_report import MachineCpu


def reserved_by_amount(cpus: Iterable[MachineCpu], count: int) -> frozenset[int] | None:
    """Return the CPUs that a static kubelet reserves for an amount: whole zones and sockets, cores, then threads.

    None if a CPU's topology is unknown, or there are too few CPUs.
    """
    online = [cpu for cpu in cpus if cpu.online]
    if count > len(online) or any(None in (cpu.core, cpu.socket, cpu.zone) for cpu in online):
        return None
    sizes = {level: Counter(getattr(cpu, level) for cpu in online) for level in ("socket", "zone", "core")}
    # Several zones in a socket make the socket the outer level, which is taken first.
    levels = ("socket", "zone", "core") if len(sizes["zone"]) > len(sizes["socket"]) else ("zone", "socket", "core")
    free = {cpu.id: cpu for cpu in online}
    taken: set[int] = set()
    for level in levels:
        for number in _ranked(free.values(), levels, level):
            members = {cpu.id for cpu in free.values() if getattr(cpu, level) == number}
            if len(members) == sizes[level][number] and len(members) <= count - len(taken):
                taken |= members
                free = {cpu: there for cpu, there in free.items() if cpu not in members}
    for core in _ranked(free.values(), levels, "core"):
        rest = sorted(cpu.id for cpu in free.values() if cpu.core == core)
        taken.update(rest[: count - len(taken)])
    return frozenset(taken)


def _ranked(free: Iterable[MachineCpu], levels: tuple[str, ...], level: str) -> list[int]:
    """Return the units of a level in the kubelet's order: by fewest free CPUs from the coarsest level down, then ID."""
    listed = list(free)
    counts = {name: Counter(getattr(cpu, name) for cpu in listed) for name in levels}
    down_to = levels[: levels.index(level) + 1]
    keys = {
        getattr(cpu, level): [(counts[name][getattr(cpu, name)], getattr(cpu, name)) for name in down_to]
        for cpu in listed
    }
    return sorted(keys, key=keys.__getitem__)
