"""Target CPUs of every container.

The policy of the pod's verified allocation decides:

    exclusive           the CPUs that the allocation lists for the container, exclusive to its pod
    immovable           the same CPUs, but not exclusive to the pod; once a container has them, it keeps them until
                        it ends, regardless of later grants
    numa                the shared CPUs of the pod's zones
    any other policy    the shared CPUs, like every container without an allocation

The shared CPUs are the online CPUs without exclusive CPUs and without CPUs that the kubelet reserves strictly. A zone
is identified by the number at the end of its name, else by the CPUs granted in it. A pod keeps its CPUs, across
restarts of its containers, until the runtime removes the pod. If two pods were granted the same CPUs, a pod with an
immovable container that already uses them takes precedence, then the pod with the higher epoch, then the older pod. The
other pod runs on the shared CPUs until the preferred pod is deleted. An offline CPU does not belong to any pod.
Source: cassini (Tencent 2022); gocrane `pkg/ensurance/cm/cpumanager/policy.go`; Kubernetes CPU manager policies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.messages.signatures import VerifiedAllocation

OWN, FIXED, NUMA = "exclusive", "immovable", "numa"
_NUMBER_AT_END = re.compile(r"[0-9]{1,5}$", re.ASCII)
Cpus = frozenset[int]


class MachineCpus(msgspec.Struct, frozen=True):
    """CPUs of the machine: the online CPUs, the CPUs that are never shared (`withheld`), and the CPUs of each zone."""

    online: Cpus
    withheld: Cpus = frozenset()
    zones: Mapping[int, Cpus] = {}


class PodContainer(msgspec.Struct, frozen=True):
    """Container of a pod."""

    id: str
    pod: str
    name: str


class RuntimePod(msgspec.Struct, frozen=True):
    """Pod in the runtime, with its verified allocation. `created_at` is in nanoseconds."""

    uid: str
    created_at: int
    granted: VerifiedAllocation | None = None


class WantedCpus(msgspec.Struct, frozen=True):
    """Target CPUs of one container; `predicted` are the granted CPUs, and `why` explains why the target CPUs differ."""

    cpus: Cpus
    own: bool = False
    predicted: Cpus | None = None
    why: str = ""


class PinPlan(msgspec.Struct, frozen=True):
    """Target CPUs of every container by ID, and the shared CPUs (empty if none are left)."""

    containers: dict[str, WantedCpus]
    shared: Cpus


def plan(
    machine: MachineCpus,
    pods: Sequence[RuntimePod],
    members: Sequence[PodContainer],
    settled: Mapping[str, Cpus] | None = None,
) -> PinPlan:
    """Return the target CPUs of every container; `settled` maps immovable containers to the CPUs they already have."""
    settled = settled or {}
    there: dict[str, set[int]] = {}
    for member in members:
        there.setdefault(member.pod, set()).update(settled.get(member.id, ()))
    holder: dict[int, RuntimePod] = {}
    lost: dict[str, str] = {}
    own: set[int] = set()
    for pod in sorted(pods, key=lambda pod: _rank(pod, bool(there.get(pod.uid)))):
        mine = _named(pod.granted) | there.get(pod.uid, set())
        if taken := sorted(cpu for cpu in mine if cpu in holder):
            lost[pod.uid] = f"CPUs {format_cpuset(taken)} belong to pod {holder[taken[0]].uid}"
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
    return PinPlan(containers, shared)


def _rank(pod: RuntimePod, settled: bool) -> tuple[bool, int, int, str]:
    return not settled, -(pod.granted.epoch if pod.granted else 0), pod.created_at, pod.uid


def _named(granted: VerifiedAllocation | None) -> set[int]:
    """Return the CPUs of an allocation that must not be assigned to another pod."""
    if granted is None or granted.policy not in (OWN, FIXED):
        return set()
    named = {cpu for cpus in granted.containers.values() for cpu in parse_cpuset(cpus)}
    return named | parse_cpuset(granted.cpus) if granted.policy == OWN else named


def _wanted(member: PodContainer, pod: RuntimePod, machine: MachineCpus, shared: Cpus, lost: str) -> WantedCpus:
    granted = pod.granted
    if granted is None or member.name not in granted.containers or granted.policy not in (OWN, FIXED, NUMA):
        return WantedCpus(shared)
    if granted.policy == NUMA:
        of_zones = _of_zones(granted, machine)
        predicted = of_zones & shared
        if predicted:
            return WantedCpus(predicted, predicted=predicted)
        why = f"all CPUs {format_cpuset(of_zones)} are exclusive to other pods or offline"
        return WantedCpus(shared, predicted=of_zones, why=why)
    predicted = parse_cpuset(granted.containers[member.name])
    if lost or not predicted:
        return WantedCpus(shared, predicted=predicted, why=lost or "the allocation contains no CPUs")
    usable = predicted & machine.online
    if not usable:
        return WantedCpus(shared, predicted=predicted, why=f"CPUs {format_cpuset(predicted)} are offline")
    offline = predicted - usable
    why = f"CPUs {format_cpuset(offline)} are offline" if offline else ""
    return WantedCpus(usable, own=granted.policy == OWN, predicted=predicted, why=why)


def _settled(member: PodContainer, pod: RuntimePod, cpus: Cpus, machine: MachineCpus) -> WantedCpus:
    granted = pod.granted
    text = granted.containers.get(member.name) if granted is not None else None
    predicted = cpus if text is None else parse_cpuset(text)
    why = "" if predicted == cpus else f"the CPU policy is immovable, so the container keeps CPUs {format_cpuset(cpus)}"
    return WantedCpus(cpus & machine.online or machine.online, predicted=predicted, why=why)


def _of_zones(granted: VerifiedAllocation, machine: MachineCpus) -> Cpus:
    found: set[int] = set()
    for zone in granted.zones:
        number = _NUMBER_AT_END.search(zone.name)
        known = machine.zones.get(int(number[0])) if number is not None else None
        found |= known if known is not None else parse_cpuset(zone.cpus or "")
    return frozenset(found) or parse_cpuset(granted.cpus)
