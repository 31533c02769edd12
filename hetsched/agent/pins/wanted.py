"""Which CPUs every container is to have.

Rule: by the policy of the pod's verified allocation,
    exclusive           what its allocation names for the container, and nobody else gets them
    immovable           the same, but others may run there too, unless they are somebody's own; once a container is
                        there it stays for its life, whatever is granted later
    numa                the shared CPUs of its zones
    all other           the shared CPUs, as every container that no allocation names
The shared CPUs are those online without the ones that are somebody's own, and without those that the kubelet reserves
where it says that they are reserved strictly. A zone is meant by the number at the end of its name, else by the CPUs
that were granted of it. What a pod was given is its own as long as the runtime knows the pod, through all restarts of
its containers. Where two pods were given the same CPUs, what is there and immovable stays, then the higher epoch
counts, then the older pod: the others run on the shared CPUs until it is gone. An offline CPU is nobody's.
Source: cassini (Tencent 2022); gocrane `pkg/ensurance/cm/cpumanager/policy.go`; Kubernetes CPU manager policies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.signing import Granted

OWN, FIXED, NUMA = "exclusive", "immovable", "numa"
_NUMBER_AT_END = re.compile(r"[0-9]{1,5}$", re.ASCII)
Cpus = frozenset[int]


class Machine(msgspec.Struct, frozen=True):
    """What of the machine can be given: CPUs online, those that nobody shares either, and those of each zone."""

    online: Cpus
    withheld: Cpus = frozenset()
    zones: Mapping[int, Cpus] = {}


class Member(msgspec.Struct, frozen=True):
    """A container of a pod."""

    id: str
    pod: str
    name: str


class Pod(msgspec.Struct, frozen=True):
    """A pod as the runtime knows it, with what was granted to it. `created_at` is in nanoseconds."""

    uid: str
    created_at: int
    granted: Granted | None = None


class Wanted(msgspec.Struct, frozen=True):
    """The CPUs of one container; `predicted` are what its grant says, where one does; `why` says how they differ."""

    cpus: Cpus
    own: bool = False
    predicted: Cpus | None = None
    why: str = ""


class Plan(msgspec.Struct, frozen=True):
    """What is wanted of every container, by id, and the CPUs that all others share; none where none are left."""

    containers: dict[str, Wanted]
    shared: Cpus


def plan(
    machine: Machine, pods: Sequence[Pod], members: Sequence[Member], settled: Mapping[str, Cpus] | None = None
) -> Plan:
    """Say which CPUs every container is to have; `settled` are those of immovable containers that are there already."""
    settled = settled or {}
    there: dict[str, set[int]] = {}
    for member in members:
        there.setdefault(member.pod, set()).update(settled.get(member.id, ()))
    holder: dict[int, Pod] = {}
    lost: dict[str, str] = {}
    own: set[int] = set()
    for pod in sorted(pods, key=lambda pod: _rank(pod, bool(there.get(pod.uid)))):
        mine = _named(pod.granted) | there.get(pod.uid, set())
        if taken := sorted(cpu for cpu in mine if cpu in holder):
            lost[pod.uid] = f"CPUs {format_cpuset(taken)} are pod {holder[taken[0]].uid}'s"
            continue
        holder.update(dict.fromkeys(mine, pod))
        if pod.granted is not None and pod.granted.policy == OWN:
            own |= mine
    shared = machine.online - own - machine.withheld
    by_uid = {pod.uid: pod for pod in pods}
    containers = {}
    for member in members:
        pod = by_uid[member.pod]
        if member.id in settled:
            containers[member.id] = _settled(member, pod, settled[member.id], machine)
        else:
            containers[member.id] = _wanted(member, pod, machine, shared, lost.get(pod.uid, ""))
    return Plan(containers, shared)


def _rank(pod: Pod, settled: bool) -> tuple[bool, int, int, str]:
    return not settled, -(pod.granted.epoch if pod.granted else 0), pod.created_at, pod.uid


def _named(granted: Granted | None) -> set[int]:
    """Return the CPUs that nobody else may be given."""
    if granted is None or granted.policy not in (OWN, FIXED):
        return set()
    named = {cpu for cpus in granted.containers.values() for cpu in parse_cpuset(cpus)}
    return named | parse_cpuset(granted.cpus) if granted.policy == OWN else named


def _wanted(member: Member, pod: Pod, machine: Machine, shared: Cpus, lost: str) -> Wanted:
    granted = pod.granted
    if granted is None or member.name not in granted.containers or granted.policy not in (OWN, FIXED, NUMA):
        return Wanted(shared)
    if granted.policy == NUMA:
        of_zones = _of_zones(granted, machine)
        predicted = of_zones & shared
        if predicted:
            return Wanted(predicted, predicted=predicted)
        why = f"all of CPUs {format_cpuset(of_zones)} are others' own or offline"
        return Wanted(shared, predicted=of_zones, why=why)
    predicted = parse_cpuset(granted.containers[member.name])
    if lost or not predicted:
        return Wanted(shared, predicted=predicted, why=lost or "its allocation names no CPU")
    usable = predicted & machine.online
    if not usable:
        return Wanted(shared, predicted=predicted, why=f"CPUs {format_cpuset(predicted)} are offline")
    gone = predicted - usable
    why = f"CPUs {format_cpuset(gone)} are offline" if gone else ""
    return Wanted(usable, own=granted.policy == OWN, predicted=predicted, why=why)


def _settled(member: Member, pod: Pod, cpus: Cpus, machine: Machine) -> Wanted:
    granted = pod.granted
    said = granted.containers.get(member.name) if granted is not None else None
    predicted = cpus if said is None else parse_cpuset(said)
    why = "" if predicted == cpus else f"it is immovable and stays on CPUs {format_cpuset(cpus)}"
    return Wanted(cpus & machine.online or machine.online, predicted=predicted, why=why)


def _of_zones(granted: Granted, machine: Machine) -> Cpus:
    found: set[int] = set()
    for zone in granted.zones:
        number = _NUMBER_AT_END.search(zone.name)
        known = machine.zones.get(int(number[0])) if number is not None else None
        found |= known if known is not None else parse_cpuset(zone.cpus or "")
    return frozenset(found) or parse_cpuset(granted.cpus)
