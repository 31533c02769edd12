"""Compare the admissions of the kubelet's code and of hetsched, and name the intended differences.

docs/reference/kubelet-differences.md gives the reason for each intended difference; a test compares the names. All
other differences are unexplained, and fail the tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..clusters import Case
from ..comparison import Difference
from ..objects import Object
from . import admissions
from .admissions import OUT_OF_RESOURCES, Admission, Kubelet

# The names of the intended differences.
BUSY_CPUS = "BusyCpus"
RESERVED_PART = "ReservedPartOfCpu"
PART_OF_GROUP = "PartOfMemoryGroup"
INTENDED = (BUSY_CPUS, RESERVED_PART, PART_OF_GROUP)


def differences(case: Case, kubelet: Kubelet) -> Iterator[Difference]:
    """Yield the first difference in the admissions of a case; later ones may follow from the first."""
    (node,) = case.objects
    theirs, ours = kubelet.admit(case), admissions.admit(case)
    if theirs.allocatable != ours.allocatable and node["kubelet"]["cpuPolicy"] == "static":
        text = f"allocatable CPUs {sorted(theirs.allocatable)} and {sorted(ours.allocatable)}"
        yield Difference(case.pods[0], text, kind="allocatable")
        return
    running: dict[str, frozenset[int]] = {}
    blocks: dict[str, set[tuple[int, ...]]] = {}
    has_released = False
    for pod, their, our in zip(case.pods, theirs.pods, ours.pods, strict=False):
        for name in pod["metadata"].get("annotations", {}).get("ended", "").split(","):
            running.pop(name, None)
            has_released = bool(blocks.pop(name, None)) or has_released
        busy = their.shared | (their.assigned - theirs.allocatable.difference(*running.values()))
        if busy:
            yield Difference(pod, f"the kubelet assigns {sorted(busy)}, which are not free", BUSY_CPUS)
            return
        kind, text = _difference(node, their, our)
        if kind:
            # Released memory of a group of NUMA nodes leaves free memory in an unknown part of the group.
            freed = has_released and any(len(zones) > 1 for zones in set().union(*blocks.values()))
            name = _intended(node["kubelet"], their, our, freed=freed)
            yield Difference(pod, f"{pod['metadata']['name']}: {text}", name, kind)
            return
        running[pod["metadata"]["name"]] = their.cpus
        blocks[pod["metadata"]["name"]] = {zones for zones, _ in their.memory}
        has_released = has_released or _releases_memory(pod, their)
    if theirs.hangs:
        yield Difference(case.pods[len(theirs.pods)], "the kubelet does not answer", kind="answer")


def _releases_memory(pod: Object, theirs: Admission) -> bool:
    """Return whether containers of a pod may have released memory: init containers, or those before a rejected one."""
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    return len(containers) > 1 if theirs.reason else bool(theirs.memory and pod["spec"].get("initContainers"))


def _intended(options: Object, theirs: Admission, ours: Admission, *, freed: bool) -> str:
    """Return the name of an intended difference, empty if the difference is unexplained."""
    if ours.reason == OUT_OF_RESOURCES and options["reservedMillis"] % 1000:
        return RESERVED_PART
    if freed and (theirs.reason, theirs.memory) != (ours.reason, ours.memory):
        return PART_OF_GROUP
    return ""


def _difference(node: Object, theirs: Admission, ours: Admission) -> tuple[str, str]:
    """Return the kind and the text of the first difference between two admissions, empty if they are equal.

    The kubelet allocates before its predicates, so each of its managers may be the first to miss a resource that the
    node does not have; hetsched then gives the one reason of its plugins.
    """
    if theirs.reason and ours.reason == OUT_OF_RESOURCES:
        return "", ""
    if theirs.reason != ours.reason:
        return "reason", f"{theirs.reason or 'admitted'} and {ours.reason or 'admitted'}"
    if theirs.cpus != ours.cpus:
        return "CPUs", f"CPUs {sorted(theirs.cpus)} and {sorted(ours.cpus)}"
    if theirs.memory != ours.memory:
        return "memory", f"memory {theirs.memory} and {ours.memory}"
    if node["kubelet"]["topologyPolicy"] != "none" and theirs.devices != ours.devices:
        return "devices", f"devices {theirs.devices} and {ours.devices}"
    if _narrowed(node, theirs.affinity) != _narrowed(node, ours.affinity):
        return "affinity", f"affinities {sorted(theirs.affinity)} and {sorted(ours.affinity)}"
    return "", ""


def _narrowed(node: dict[str, Any], affinity: frozenset[int]) -> frozenset[int]:
    """Return an affinity, or the empty set for an affinity to all NUMA nodes that have CPUs."""
    every = {numa["id"] for numa in node["numa"] if numa.get("cores")}
    return frozenset() if affinity >= every else affinity
