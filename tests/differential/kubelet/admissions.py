"""Admissions of the pods of a case by the kubelet's own code and by hetsched.

The kubelet's side is the Go program `tests/kube/kubelet_verdicts`. hetsched's side reads the node as the report of a
node agent and as a Node object, and predicts the admission of each pod on the state that its own predictions for the
earlier pods left. The predicates of the kubelet correspond to the plugins `resource-fit` and `gpu-fit`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.adapters.node_facts.agent_reports import node_facts
from hetsched.adapters.node_facts.report_merge import merge_reports
from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.messages.agent_report import (
    AgentReport,
    KubeletState,
    MachineCard,
    MachineCpu,
    MachineIsa,
    MachineZone,
)
from hetsched.contracts.objects.allocation import Allocation, CardGrant
from hetsched.contracts.objects.kubelet_options import read_options
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.policy import PluginUse, PolicySpec, Ties
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.reserved_cpus import reserved_by_amount
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.extender_verbs import filter_nodes
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.numa.kubelet_admission import KubeletAdmission
from hetsched.engine.numa.topology_manager import KubeletVerdict
from hetsched.engine.numa.topology_setup import AWARENESS_LABELS
from tests.kube.control_plane import VERSION

from ..clusters import Case
from ..objects import Object
from ..program import JsonProgram
from .nodes import GPU, MEMORY, PAGES

OUT_OF_RESOURCES = "OutOf"  # the kubelet's reasons of this kind begin with it
NODE = "node"
_MIB = 1 << 20


class Admission(msgspec.Struct):
    """The admission of one pod: the reason of a rejection, or the assigned resources.

    `cpus` are the exclusive CPUs while the pod runs, after its init containers have ended; `assigned` includes those of
    the init containers, and `shared` are those of a running container that a later container got as well; both are only
    known for the kubelet. `devices` are the numbers of devices by resource and NUMA node until the pod ends. `affinity`
    are the NUMA nodes that the containers with aligned resources are bound to, empty if they are not aligned. `memory`
    is the memory in bytes, by NUMA nodes and kind, of the containers that run until the pod ends.
    """

    reason: str = ""
    cpus: frozenset[int] = frozenset()
    devices: dict[str, dict[int, int]] = {}
    affinity: frozenset[int] = frozenset()
    assigned: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    memory: dict[tuple[tuple[int, ...], str], int] = {}


class Admissions(msgspec.Struct):
    """The CPUs that a node's CPU manager may assign, and the admissions of the pods, in order.

    `hangs` states that the kubelet never answers for the pod after these.
    """

    allocatable: frozenset[int]
    pods: list[Admission]
    hangs: bool = False


class Kubelet(JsonProgram):
    """The program with the kubelet's code, used in a `with` statement.

    It needs the right to change its root folder; without it, it runs in a new user namespace.
    """

    def __init__(self, program: Path) -> None:
        memory = Path("/dev/shm")  # the managers write a checkpoint for each assignment
        self._folder = tempfile.mkdtemp(prefix="hetsched-kubelet-", dir=memory if memory.is_dir() else None)
        alone = () if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user")
        super().__init__(*alone, str(program), self._folder)

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        shutil.rmtree(self._folder, ignore_errors=True)

    def admit(self, case: Case) -> Admissions:
        """Return the admissions of the pods of a case. Raises: RuntimeError if the kubelet does not start."""
        (node,) = case.objects
        _check_resources(node, case.pods)
        answer = self.ask({"node": node, "pods": case.pods})
        if answer["timeout"]:
            self.restart()
        if answer["error"]:
            raise RuntimeError(f"seed {case.seed}: {answer['error']}")
        zones = {
            resource: {device["id"]: device.get("numa") for device in devices}
            for resource, devices in node["devices"].items()
        }
        every = frozenset(numa["id"] for numa in node["numa"])
        answered = zip(case.pods, answer["pods"] or [], strict=False)
        admissions = [_read(pod, found, zones, every) for pod, found in answered]
        return Admissions(parse_cpuset(answer["allocatable"]), admissions, answer["timeout"])


def _check_resources(node: Object, pods: Iterable[Object]) -> None:
    """Reject pods that request devices which the node does not have: the kubelet ignores such requests."""
    for pod in pods:
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            missing = {name for name in container["resources"]["limits"] if "/" in name} - node["devices"].keys()
            if missing:
                raise RuntimeError(f"{pod['metadata']['name']} requests unknown resources {sorted(missing)}")


def _read(pod: Object, found: Object, zones: dict[str, dict[str, int | None]], every: frozenset[int]) -> Admission:
    """Read one admission; a container without a preferred affinity may use `every` NUMA node."""
    if found["reason"]:
        rejected = found["reason"].startswith(OUT_OF_RESOURCES)
        return Admission(OUT_OF_RESOURCES if rejected else found["reason"])
    ended = {each["name"] for each in pod["spec"].get("initContainers", ()) if each.get("restartPolicy") != "Always"}
    admission = Admission()
    held: dict[str, set[str]] = {}
    started = [each["name"] for each in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])]
    for name in started:
        assigned = found["containers"][name]
        for resource, devices in assigned["devices"].items():
            held.setdefault(resource, set()).update(devices)
        for block in () if name in ended else assigned["memory"] or ():
            key = tuple(block["numa"]), block["kind"]
            admission.memory[key] = admission.memory.get(key, 0) + block["size"]
        cpus = parse_cpuset(assigned["cpus"])
        admission.assigned |= cpus
        admission.shared |= admission.cpus & cpus
        if name not in ended:
            admission.cpus |= cpus
            # hetsched also binds containers with GPUs of unknown zones, to all NUMA nodes.
            aligned = (resource == GPU or set(zones[resource].values()) - {None} for resource in assigned["devices"])
            if assigned["cpus"] or assigned["memory"] or any(aligned):
                admission.affinity |= frozenset(assigned["affinity"] or every)
    for resource, devices in held.items():
        counts = Counter(zone for device in devices if (zone := zones[resource][device]) is not None)
        if counts:
            admission.devices[resource] = dict(counts)
    return admission


# -- hetsched ----------------------------------------------------------------------------------------------------------

_REGISTRY = load_registry()
_PREDICATES = compile_policy(
    PolicySpec("predicates", (PluginUse("resource-fit"), PluginUse("gpu-fit")), Ties()), _REGISTRY
)
_NUMA_FIT = compile_policy(PolicySpec("numa", (PluginUse("numa-fit"),), Ties()), _REGISTRY)


def admit(case: Case) -> Admissions:
    """Return hetsched's prediction of the admissions of the pods of a case."""
    (node,) = case.objects
    report = node_report(node)
    assert report.numa is not None
    names = {pod["metadata"]["name"]: pod for pod in case.pods}
    manifests = json.dumps({"apiVersion": "v1", "kind": "List", "items": case.pods}).encode()
    pods = {pod.name: pod for pod in parse_workload([("pods.json", manifests)]).pending}
    state = ClusterState([report])
    cpus = frozenset[int]().union(*(parse_cpuset(zone.cpus or "") for zone in report.numa.zones))
    admissions = []
    for name, manifest in names.items():
        for ended in manifest["metadata"].get("annotations", {}).get("ended", "").split(","):
            state.forget(f"default/{ended}")
        admissions.append(_admit(state, pods[name]))
    return Admissions(cpus - parse_cpuset(report.numa.reserved_cpus or ""), admissions)


def node_report(node: Object) -> NodeReport:
    """Return hetsched's facts about a node: its Node object, and the report of its agent."""
    kubelet = node["kubelet"]
    online = [cpu for cpu in _cpus(node) if cpu.online]
    allocatable = {"cpu": f"{1000 * len(online) - kubelet['reservedMillis']}m", "memory": "1Ti", "pods": "1000"}
    allocatable |= {resource: str(len(devices)) for resource, devices in node["devices"].items()}
    allocatable |= dict.fromkeys(PAGES, "1Ti")
    manifest = {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {AWARENESS_LABELS[0]: "false"}},
        "status": {
            "allocatable": allocatable, "capacity": allocatable, "nodeInfo": {"kubeletVersion": f"v{VERSION}"},
        },
    }  # fmt: skip
    (base,) = parse_cluster([("node.json", json.dumps(manifest).encode())]).nodes
    return merge_reports(base, node_facts(_agent_report(node), kubelet_version=base.kubelet_version))


def _cpus(node: Object) -> Iterator[MachineCpu]:
    for numa in node["numa"]:
        for core in numa["cores"]:
            siblings = format_cpuset(core["threads"])
            for cpu in core["threads"]:
                first = min(core["threads"])
                yield MachineCpu(cpu, first, core["socket"], numa["id"], siblings, cache=core["cache"])


def _agent_report(node: Object) -> AgentReport:
    cpus = tuple(_cpus(node))
    zones = tuple(
        MachineZone(
            numa["id"],
            format_cpuset(cpu.id for cpu in cpus if cpu.zone == numa["id"]),
            memory_mib=65536,
            distances=tuple(numa["distances"][str(other["id"])] for other in node["numa"]),
        )
        for numa in node["numa"]
    )
    cards = tuple(
        MachineCard(index, card["id"], "A100-SXM4-40GB", 40960, zone=card.get("numa"), healthy=True, vendor="nvidia")
        for index, card in enumerate(node["devices"].get(GPU, ()))
    )
    return AgentReport(
        NODE, MachineIsa("x86", None), zones, cpus, cards or None, _kubelet_state(node, cpus), memory_mib=_MIB
    )


def _kubelet_state(node: Object, cpus: tuple[MachineCpu, ...]) -> KubeletState:
    kubelet = node["kubelet"]
    reserved, number = parse_cpuset(kubelet["reservedCPUs"]), None
    if kubelet["cpuPolicy"] == "static" and not reserved:
        number = -(-kubelet["reservedMillis"] // 1000)
        computed = reserved_by_amount(cpus, number, read_options(kubelet["cpuOptions"], {}))
        assert computed is not None
        reserved = computed
    zones = {
        resource: {device["id"]: (device["numa"],) if "numa" in device else () for device in devices}
        for resource, devices in node["devices"].items()
    }
    return KubeletState(
        cpu_manager_policy=kubelet["cpuPolicy"],
        cpu_manager_options=kubelet["cpuOptions"],
        topology_manager_policy=kubelet["topologyPolicy"],
        topology_manager_scope=kubelet["topologyScope"],
        topology_manager_options=kubelet["topologyOptions"],
        reserved_cpus=format_cpuset(reserved) or None,
        reserved_number=number,
        device_zones=zones,
        memory_manager_policy=kubelet.get("memoryPolicy", "None"),
        memory=_assignable(node) if "memoryPolicy" in kubelet else None,
    )


def _assignable(node: Object) -> dict[str, dict[str, int]]:
    """Return the memory that the memory manager may assign, by NUMA node and kind, as in its checkpoint."""
    reserved = {one["numa"]: one["limits"] for one in node["kubelet"]["reservedMemory"]}
    found = {}
    for numa in node["numa"]:
        pages = {kind: numa["hugePages"].get(str(size >> 10), 0) * size for kind, size in PAGES.items()}
        amounts = {MEMORY: numa["memory"] - sum(pages.values()), **pages}
        limits = reserved.get(numa["id"], {})
        found[str(numa["id"])] = {kind: amount - limits.get(kind, 0) for kind, amount in amounts.items()}
    return found


def _admit(state: ClusterState, pod: PodSpec) -> Admission:
    """Predict the admission of a pod, and place it with its predicted resources if it is admitted."""
    if not filter_nodes(Scheduler(state, _PREDICATES), pod, [NODE]).feasible:
        return Admission(OUT_OF_RESOURCES)
    admission = KubeletAdmission.of(pod.shape, state)
    node = Window(state.columns, np.array([0], np.intp))
    verdicts = admission.assignments(node)[1] if admission is not None else []
    found: KubeletVerdict = verdicts[0] if verdicts else KubeletVerdict("")
    feasible = filter_nodes(Scheduler(state, _NUMA_FIT), pod, [NODE]).feasible
    if bool(feasible) == bool(found.reason):
        return Admission(f"{found.reason or 'admitted'}, but numa-fit decides otherwise")
    if found.reason:
        return Admission(found.reason)
    facts = state.zones.nodes.get(0)
    ids = [int(name.removeprefix("node-")) for name in facts.names] if facts is not None else []
    cards = _cards(state, pod, found, ids)
    placed = state.assume(state.compile(pod), 0, Allocation(gpus=cards))
    devices: dict[str, dict[int, int]] = {}
    for grant in placed.allocation.predicted:
        for resource, count in (grant.devices or {}).items():
            devices.setdefault(resource, {})[int(grant.name.removeprefix("node-"))] = count
    near = Counter(zone for card in cards if (zone := _zone(state, card.index)) is not None)
    if near:
        devices[GPU] = dict(near)
    cpus = frozenset[int]().union(*(parse_cpuset(grant.cpus or "") for grant in placed.allocation.predicted))
    memory = {
        (tuple(int(zone.removeprefix("node-")) for zone in grant.zones), grant.kind): grant.size
        for grant in placed.allocation.memory or ()
    }
    return Admission("", cpus, devices, frozenset(ids[position] for position in found.aligned), memory=memory)


def _zone(state: ClusterState, card: int) -> int | None:
    near = state.cards[0][card].numa_zone
    return None if near is None else int(near.removeprefix("node-"))


def _cards(state: ClusterState, pod: PodSpec, found: KubeletVerdict, ids: list[int]) -> tuple[CardGrant, ...]:
    """Return free GPUs in the predicted zones; without a prediction, in the order of the device plugin of the test."""
    if pod.shape.gpu is None:
        return ()
    milli = state.columns.field("card_milli_free")[:, 0]
    free: dict[int | None, list[int]] = {}
    for card in state.cards[0]:
        if milli[card.index] >= WHOLE_CARD_MILLI:
            free.setdefault(_zone(state, card.index), []).append(card.index)
    chosen: list[int] = []
    for position, count in enumerate(found.cards):
        zone = ids[position]
        chosen += free.get(zone, [])[:count]
        free[zone] = free.get(zone, [])[count:]
    order = [None] if any(found.cards) else sorted(free, key=lambda zone: (zone is None, len(free[zone]), zone or 0))
    chosen += [card for zone in order for card in free.get(zone, ())][: pod.shape.gpu.count - len(chosen)]
    return tuple(CardGrant(card, WHOLE_CARD_MILLI, 40960) for card in chosen)
