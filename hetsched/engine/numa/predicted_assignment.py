"""Resources that a kubelet is predicted to assign to a pod: zones, CPUs, devices and memory.

They are part of the pod's allocation, and so reserved, until the kubelet's actual assignment is reported.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET

from hetsched.contracts.cpu_topology import members
from hetsched.contracts.cpuset import format_cpuset
from hetsched.contracts.objects.allocation import Allocation, ZoneGrant
from hetsched.contracts.objects.pinned_memory import MemoryGrant
from hetsched.contracts.objects.workload import Shape
from hetsched.engine.cluster.columns import Window
from hetsched.engine.framework.request import CompiledShape

from .kubelet_admission import AdmissionState, KubeletAdmission
from .topology_setup import KUBELET, Setup


def predicts(state: AdmissionState, compiled: CompiledShape, row: int, allocation: Allocation) -> bool:
    """Return whether the node's kubelet will assign resources that the allocation does not state."""
    return _predicts_zones(state, compiled, row, allocation) or _predicts_memory(state, compiled, row, allocation)


def with_predicted(state: AdmissionState, compiled: CompiledShape, row: int, allocation: Allocation) -> Allocation:
    """Add the zones, CPUs and memory that the node's kubelet is predicted to assign and that are not stated."""
    zones = _predicts_zones(state, compiled, row, allocation)
    memory = _predicts_memory(state, compiled, row, allocation)
    if not zones and not memory:
        return allocation
    taken = predicted(state, row, compiled.shape)
    if memory:
        allocation = msgspec.structs.replace(allocation, memory=taken.memory or UNSET)
    if zones:
        policy = KUBELET if _setup(state, row).pins and compiled.kubelet_pins else allocation.cpu_policy
        allocation = msgspec.structs.replace(allocation, predicted=taken.zones, cpu_policy=policy)
    return allocation


def _predicts_zones(state: AdmissionState, compiled: CompiledShape, row: int, allocation: Allocation) -> bool:
    if not (compiled.kubelet_pins or compiled.zoned_devices):
        return False
    if allocation.zones or allocation.predicted or allocation.cpu_policy == KUBELET:
        return False
    setup = _setup(state, row)
    return setup.pins or setup.policy != "none"


def _predicts_memory(state: AdmissionState, compiled: CompiledShape, row: int, allocation: Allocation) -> bool:
    return compiled.static_memory and not allocation.memory and _setup(state, row).memory


def _setup(state: AdmissionState, row: int) -> Setup:
    setup: Setup = state.setups.values[state.columns.field("topology_setup")[row]]
    return setup


class Prediction(NamedTuple):
    """Resources that a kubelet would assign to a pod, both empty if it would reject the pod."""

    zones: tuple[ZoneGrant, ...] = ()
    memory: tuple[MemoryGrant, ...] = ()


def predicted(state: AdmissionState, row: int, shape: Shape) -> Prediction:
    """Return the resources that the node's kubelet would assign to a pod."""
    admission = KubeletAdmission.of(shape, state)
    facts = state.zones.nodes.get(row)
    if admission is None or facts is None:
        return Prediction()
    _, found = admission.assignments(Window(state.columns, np.array([row], np.intp)))
    if not found or found[0].reason:
        return Prediction()
    taken = found[0]
    grants = []
    for position, count in enumerate(taken.cpus):
        cpus = [cpu for cpu in taken.cpu_ids if facts.zone_of_cpu[cpu] == position]
        devices = {name: counts[position] for name, counts in taken.devices if counts[position]}
        if count or devices:
            named = format_cpuset(cpus) if cpus else None
            grants.append(ZoneGrant(facts.names[position], named, 1000 * count, devices=devices or UNSET))
    sizes: dict[tuple[int, str], int] = {}
    for block in taken.memory:  # the last block of a zone determines the group of the zone, so it remains the last
        key = block.affinity, block.kind
        sizes[key] = sizes.pop(key, 0) + block.size
    memory = tuple(
        MemoryGrant(tuple(facts.names[position] for position in members(affinity)), kind, size)
        for (affinity, kind), size in sizes.items()
    )
    return Prediction(tuple(grants), memory)
