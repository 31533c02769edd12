"""Which CPUs a kubelet keeps for itself where it is told only how many.

Problem: `kubeReserved: {cpu: 500m}` reserves certain CPUs under the static policy, and no file says which.
Rule: they are taken as the kubelet takes CPUs for a container: whole zones, then whole sockets (sockets first where
they have several zones), then whole cores, then threads; each level from the fewest free CPUs up, from the coarsest
level down, then by id.
Source: kubernetes pkg/kubelet/cm/cpumanager/cpu_assignment.go (packed order, 1.36).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hetsched.contracts.agent_report import MachineCpu


def reserved_by_amount(cpus: Iterable[MachineCpu], count: int) -> frozenset[int] | None:
    """Return the CPUs that a static kubelet reserves for an amount: whole zones and sockets, cores, then threads.

    None where a CPU's place is unknown, or there are not as many.
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
    """Return the parts of a level in the kubelet's order: by fewest free CPUs from the coarsest level down, then id."""
    listed = list(free)
    counts = {name: Counter(getattr(cpu, name) for cpu in listed) for name in levels}
    down_to = levels[: levels.index(level) + 1]
    keys = {
        getattr(cpu, level): [(counts[name][getattr(cpu, name)], getattr(cpu, name)) for name in down_to]
        for cpu in listed
    }
    return sorted(keys, key=keys.__getitem__)
