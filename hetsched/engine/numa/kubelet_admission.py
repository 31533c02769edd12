"""Prediction of kubelet admission: topology manager, CPU manager and memory manager, evaluated on columns.

A verdict is predicted only on nodes with known zones: for a Guaranteed pod with whole CPUs if the CPU manager is
static, for every Guaranteed pod if the memory manager is static, and for a pod with devices if the topology policy
aligns them. Nodes in equal states share one prediction. A GPU is free for the kubelet if no pod uses any share of it;
devices without a stated zone produce no hint.
Source: see `topology_manager`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol, TypeVar

import numpy as np

from hetsched.contracts.objects.workload import Shape
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, WORD_BITS, Bools, Ints, Rows, Vocabulary, Window
from hetsched.engine.cluster.state_view import StateView

from .memory_manager import MemoryZone
from .resource_managers import ContainerDemands, DeviceZones, ZoneResources, keep_highest
from .topology_manager import KubeletVerdict, reason, verdict
from .topology_setup import Setup
from .zones import Zones

T = TypeVar("T")
_BINDING = ("restricted", "single-numa-node")


def kubelet_containers(
    shape: Shape, resources: Collection[str] = (), *, memory: bool = False
) -> tuple[ContainerDemands, ...]:
    """Return the demands that a kubelet aligns: whole CPUs if Guaranteed, GPUs, and devices of the `resources`.

    With `memory`, they include the memory of Guaranteed pods.
    """
    found = (
        ContainerDemands(
            one.cpus if shape.guaranteed else 0,
            one.cards,
            one.init,
            tuple((name, count) for name, count in one.devices if name in resources),
            one.memory if memory else (),
        )
        for one in shape.containers
    )
    return _demanding(found)


def _demanding(containers: Iterable[ContainerDemands]) -> tuple[ContainerDemands, ...]:
    """Return the containers that request any resource of the kubelet's managers."""
    return tuple(one for one in containers if one.cpus or one.cards or one.devices or one.memory)


class AdmissionState(StateView, Protocol):
    """The part of `ClusterState` that the prediction of admission reads."""

    setups: Vocabulary[Setup]
    zones: Zones


class KubeletAdmission:
    """Predicted kubelet verdicts on one shape, for the nodes of one state."""

    __slots__ = ("_aligns", "_demands", "_devices", "_kinds", "_layout", "_rejects", "_setups", "_vendor", "containers")

    def __init__(self, shape: Shape, state: AdmissionState, containers: tuple[ContainerDemands, ...]) -> None:
        self.containers = containers
        # The demands by whether CPUs are pinned, and whether memory is assigned.
        self._demands = {
            (pins, memory): _demanding(
                one._replace(cpus=one.cpus if pins else 0, memory=one.memory if memory else ()) for one in containers
            )
            for pins in (False, True)
            for memory in (False, True)
        }
        pinned, aligned = any(container.cpus for container in containers), bool(self._demands[False, False])
        remembered = any(container.memory for container in containers)
        self._setups = list(state.setups.values)
        assigns = [setup.zoned and ((setup.pins and pinned) or (setup.memory and remembered)) for setup in self._setups]
        policies = [setup.policy if setup.zoned and aligned else "none" for setup in self._setups]
        self._rejects: Bools = np.array([a or b in _BINDING for a, b in zip(assigns, policies, strict=True)], np.bool_)
        self._aligns: Bools = np.array([a or b != "none" for a, b in zip(assigns, policies, strict=True)], np.bool_)
        vendor = shape.gpu.vendor if shape.gpu is not None else ""
        self._vendor = state.vendors.index.get(vendor, 0)
        self._layout = state.columns.layout
        asked = {name for container in containers for name, _ in container.devices}
        self._devices = [(name, state.resources.index[name]) for name in sorted(asked)]
        kinds = {kind for container in containers for kind, _ in container.memory}
        self._kinds = sorted(kinds & self._layout.memory.keys())

    @staticmethod
    def of(shape: Shape, state: AdmissionState) -> KubeletAdmission | None:
        """Return the admission of a shape, or None if no kubelet of the cluster would align or could reject it."""
        layout = state.columns.layout
        if not shape.containers:
            return None
        containers = kubelet_containers(shape, layout.devices, memory=bool(layout.memory))
        if not containers:
            return None
        admission = KubeletAdmission(shape, state, containers)
        return admission if admission._aligns.any() else None

    def verdicts(self, nodes: Window) -> tuple[Rows, list[KubeletVerdict]]:
        """Return the rows of a window whose kubelets may reject the pod, with the predicted verdict of each."""
        return self._each(nodes, self._rejects, verdict)

    def assignments(self, nodes: Window) -> tuple[Rows, list[KubeletVerdict]]:
        """Return the same as `verdicts`, also for kubelets that align the pod but cannot reject it (best-effort)."""
        return self._each(nodes, self._aligns, verdict)

    def reasons(self, nodes: Window, *, memory: bool = True) -> tuple[Rows, list[str]]:
        """Return the rows of a window whose kubelets may reject the pod, with the predicted error, "" for admission.

        Without `memory`, the errors are those of kubelets without a static memory manager.
        """
        return self._each(nodes, self._rejects, reason, memory=memory)

    def _each(
        self, nodes: Window, setups: Bools, ask: Callable[..., T], *, memory: bool = True
    ) -> tuple[Rows, list[T]]:
        rows = np.flatnonzero(setups[nodes.static("topology_setup")])
        if not rows.size:
            return rows, []
        states = self._states(nodes)[rows]
        keys = [state.tobytes() for state in states]
        known = {key: ask(*self._asked(state, memory)) for key, state in dict(zip(keys, states, strict=True)).items()}
        return rows, [known[key] for key in keys]

    def admits(self, nodes: Window) -> Bools:
        """Return an (n,) mask that is True for nodes whose kubelet would not reject the pod."""
        admitted: Bools = np.ones(nodes.n, np.bool_)
        rows, found = self.reasons(nodes)
        admitted[rows] = [not one for one in found]
        return admitted

    def setup(self, nodes: Window, row: int) -> Setup:
        return self._setups[int(nodes.static("topology_setup")[row])]

    def _states(self, nodes: Window) -> Ints:
        """Return all inputs of each node's verdict, shape (n, 2 + 4Z + D(2Z + 1) + 2KZ + G + W).

        For Z zones, D device resources, K kinds of memory and W words of CPU bits, they are the setup; the total and
        free CPUs and GPUs by zone; the free GPUs without a zone; for each device resource, the total and free devices
        by zone and the free devices without a zone; for each kind, the total and free memory by zone; the G = Z groups
        of memory (G = 0 if K = 0); and the bits of the free CPUs.
        """
        zones: Ints = np.arange(len(nodes.static("zone_cpus")))
        present = nodes.static("card_milli") > 0
        if self._vendor:
            vendor = nodes.static("card_vendor")
            present = present & ((vendor == self._vendor) | (vendor == 0))
        free = present & (nodes.load("card_milli_free") >= WHOLE_CARD_MILLI)
        inside = nodes.static("card_zone") == zones[:, None, None]
        blocks = [
            nodes.static("topology_setup")[None],
            nodes.static("zone_cpus"),
            np.maximum(nodes.load("zone_cpus_free"), 0),
            (inside & present).sum(axis=1),
            (inside & free).sum(axis=1),
            (free & ~inside.any(axis=0)).sum(axis=0)[None],
        ]
        for name, resource in self._devices:
            first = self._layout.devices[name] * len(zones)
            total = nodes.static("zone_devices")[first : first + len(zones)]
            remaining = np.maximum(nodes.load("zone_devices_free")[first : first + len(zones)], 0)
            unheld = nodes.static("allocatable")[resource] - nodes.load("requested")[resource]
            blocks += [total, remaining, np.maximum(unheld - remaining.sum(axis=0), 0)[None]]
        for kind in self._kinds:
            first = self._layout.memory[kind] * len(zones)
            blocks += [nodes.static("static_memory")[first : first + len(zones)]]
            blocks += [nodes.load("static_memory_free")[first : first + len(zones)]]
        if self._kinds:
            blocks.append(nodes.load("memory_group"))
        blocks.append(nodes.load("kubelet_cpus_free"))
        return np.ascontiguousarray(np.concatenate(blocks).T)

    def _asked(self, state: Ints, with_memory: bool) -> tuple[object, ...]:
        """Return the arguments of `verdict` and `reason` for one row of `_states`."""
        setup, size = self._setups[int(state[0])], self._layout.zones
        by_zone = state[1 : 1 + 4 * size].reshape(4, -1)
        devices, at = [], 2 + 4 * size
        by_device = state[at : at + len(self._devices) * (2 * size + 1)].reshape(-1, 2 * size + 1)[:, :size]
        count = max(1, len(np.trim_zeros(by_zone[0] + by_zone[2] + by_device.sum(axis=0), "b")))
        containers = self._demands[setup.pins, setup.memory and with_memory]
        remembered = any(container.memory for container in containers)
        count = setup.kubelet.numa_nodes if remembered else count
        for name, _ in self._devices:
            total, remaining = (tuple(state[at + part * size :][:count].tolist()) for part in (0, 1))
            devices.append(DeviceZones(name, total, remaining, int(state[at + 2 * size])))
            at += 2 * size + 1
        memory = self._memory_zones(state[at:], count) if remembered else ()
        at += (2 * len(self._kinds) + bool(self._kinds)) * size
        topology, free_cpus = setup.kubelet.topology, None
        if topology is not None:
            words = state[at:].tolist()
            free_cpus = sum(word << WORD_BITS * number for number, word in enumerate(words))
            free_cpus = keep_highest(topology, free_cpus, tuple(by_zone[1].tolist()))
        cpus, cpus_free, cards, cards_free = (tuple(part[:count].tolist()) for part in by_zone)
        machine = ZoneResources(
            cpus, cpus_free, cards, cards_free, tuple(devices), free_cpus, int(state[1 + 4 * size]), memory
        )
        return setup.policy, setup.pod_scope, machine, containers, setup.kubelet

    def _memory_zones(self, state: Ints, count: int) -> tuple[MemoryZone, ...]:
        """Return the memory of `count` zones from the part of a row of `_states` that begins with the memory."""
        size, kinds = self._layout.zones, self._kinds
        if not kinds:
            return (MemoryZone((), ()),) * count
        parts = state[: (2 * len(kinds) + 1) * size].reshape(-1, size)[:, :count].T.tolist()
        return tuple(
            MemoryZone(
                tuple(zip(kinds, zone[:-1:2], strict=True)), tuple(zip(kinds, zone[1:-1:2], strict=True)), zone[-1]
            )
            for zone in parts
        )
