"""A heterogeneous fleet and its pods as Kubernetes objects, and an independent audit of the placements.

Of 20 nodes: 8 plain amd64, 5 arm64, 4 riscv64 (2 with the vector extension), 2 with 8 GPUs, 1 with two NUMA zones. Of
50 pods: 22 fit anywhere, 8 need RISC-V (4 of them vector), 3 need a whole GPU, 4 need 300/1000 of a GPU, 3 need two
exclusive CPUs, 4 form a gang, 4 are pinned to a node by affinity, and 2 do not fit anywhere.
The audit reads only data of the API server: nodes as created, and the allocation annotation of each bound pod.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NODE_GPUS, NODES, PODS, TOPOLOGIES

CARDS = 8
_NODES_PER_ROUND, _PODS_PER_ROUND = 20, 50
_ARCHES = ("amd64",) * 8 + ("arm64",) * 5 + ("riscv64",) * 4 + ("amd64",) * 3
_IMPOSSIBLE = 2
AWARE = "topology.crane.io/topology-awareness"
PODS_PATH = PODS.path(namespace="default")
Json = dict[str, Any]


def names(count: int) -> list[str]:
    return [f"mixed-{number:04}" for number in range(count)]


def nodes(count: int) -> Iterator[Json]:
    """Yield the nodes; `count` is a multiple of 20."""
    for number, name in enumerate(names(count)):
        kind = number % _NODES_PER_ROUND
        arch = _ARCHES[kind]
        labels = {"kubernetes.io/arch": arch, "kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
        if arch == "riscv64":
            labels["hetsched.io/isa"] = "rv64gcv" if kind % 2 else "rv64gc"
        room = {"cpu": "16", "memory": "64Gi", "pods": "110"}
        if kind in (17, 18):
            room["nvidia.com/gpu"] = str(CARDS)
        if kind == 19:
            labels[AWARE] = "true"
        yield {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": room, "capacity": room}}


def cards(count: int) -> Iterator[Json]:
    """Yield the GPUs of the nodes that have GPUs."""
    for name in names(count):
        if _kind(name) in (17, 18):
            yield {
                "apiVersion": NODE_GPUS.api_version, "kind": NODE_GPUS.kind, "metadata": {"name": name},
                "spec": {
                    "cards": [
                        {"index": index, "uuid": f"GPU-{name}-{index}", "model": "A100", "memoryMiB": 81920}
                        for index in range(CARDS)
                    ]
                },
            }  # fmt: skip


def zones(count: int) -> Iterator[Json]:
    """Yield the zones of the nodes that have zones: two zones of eight CPUs each."""
    for name in names(count):
        if _kind(name) == 19:
            yield {
                "apiVersion": TOPOLOGIES.api_version, "kind": TOPOLOGIES.kind, "metadata": {"name": name},
                "attributes": [{"name": "cpuManagerPolicy", "value": "none"}],
                "zones": [
                    {
                        "name": f"node-{zone}", "type": "Node",
                        "attributes": [{"name": "hetsched.io/cpus", "value": f"{8 * zone}-{8 * zone + 7}"}],
                        "resources": [
                            {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "8"},
                            {"name": "memory", "capacity": "32Gi", "allocatable": "32Gi", "available": "32Gi"},
                        ],
                    }
                    for zone in range(2)
                ],
            }  # fmt: skip


def pods(count: int, nodes: int) -> Iterator[Json]:
    """Yield the pods; `count` is a multiple of 50."""
    plain = [name for name in names(nodes) if _kind(name) < 8]
    for number in range(count):
        kind, turn = number % _PODS_PER_ROUND, number // _PODS_PER_ROUND
        if kind < 22:
            yield _pod("plain", number)
        elif kind < 30:
            yield _pod("riscv", number, labels={"hetsched.io/isa": "rv64gcv" if kind % 2 else "rv64gc"})
        elif kind < 33:
            yield _pod("whole", number, annotations={"oks/gpu-number": "1"})
        elif kind < 37:
            yield _pod("shared", number, annotations={"hetsched.io/gpu-milli": "300"})
        elif kind < 40:
            aware = {AWARE: "true", "topology.crane.io/cpu-policy": "exclusive"}
            yield _pod("pinned", number, annotations=aware, cpu="2", limits=True)
        elif kind < 44:
            group = {
                "pod-group.scheduling.sigs.k8s.io/name": f"gang-{turn}",
                "pod-group.scheduling.sigs.k8s.io/min-available": "4",
            }
            yield _pod("gang", number, labels=group)
        elif kind < 48:
            yield _pod("affine", number, on=plain[number % len(plain)])
        else:
            yield _pod("impossible", number, cpu="64")


def bindable(count: int) -> int:
    """Return how many of `count` pods fit."""
    return count - _IMPOSSIBLE * count // _PODS_PER_ROUND


def create(api: Api, objects: Iterable[Json], path: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(api.send, "POST", path, json.dumps(obj).encode()) for obj in objects]:
            done.result()


def create_fleet(api: Api, count: int) -> None:
    create(api, cards(count), NODE_GPUS.path())
    create(api, zones(count), TOPOLOGIES.path())
    create(api, nodes(count), NODES.path())


def create_pods(api: Api, count: int, nodes: int) -> None:
    create(api, pods(count, nodes), PODS_PATH)


def _kind(name: str) -> int:
    return int(name.rpartition("-")[2]) % _NODES_PER_ROUND


def _pod(
    kind: str,
    number: int,
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    cpu: str = "250m",
    limits: bool = False,
    on: str = "",
) -> Json:
    requests = {"cpu": cpu, "memory": "256Mi"}
    resources = {"requests": requests, "limits": requests} if limits else {"requests": requests}
    spec: Json = {
        "schedulerName": "hetsched",
        "containers": [{"name": "main", "image": "registry.example/job:1", "resources": resources}],
    }
    if on:
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [on]}]}
        required = {"nodeSelectorTerms": [term]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    meta = {"name": f"{kind}-{number:05}", "labels": labels or {}, "annotations": annotations or {}}
    return {"metadata": meta, "spec": spec}


# -- the audit ---------------------------------------------------------------------------------------------------------


def placement_violations(pods: list[Json], nodes: list[Json]) -> list[str]:
    """Return the constraint violations of the bound pods as texts."""
    found: list[str] = []
    by_name = {node["metadata"]["name"]: node for node in nodes}
    cpu, cards, cpus = Counter[str](), Counter[str](), defaultdict[str, set[int]](set)
    gangs = Counter[str]()
    for pod in pods:
        name, node_name = pod["metadata"]["name"], pod["spec"].get("nodeName")
        if not node_name:
            continue
        labels, annotations = pod["metadata"].get("labels", {}), pod["metadata"].get("annotations", {})
        kind = name.rpartition("-")[0]
        node = by_name[node_name]
        where = node["metadata"]["labels"]
        allocation = json.loads(annotations.get("hetsched.io/allocation", "{}"))
        if allocation.get("node") != node_name or allocation.get("uid") != pod["metadata"]["uid"]:
            found.append(f"{name} on {node_name} carries the allocation {allocation}")
            continue
        requests = pod["spec"]["containers"][0]["resources"]["requests"]
        cpu[node_name] += _millis(requests["cpu"])
        wanted = labels.get("hetsched.io/isa")
        if wanted and wanted not in (where.get("hetsched.io/isa"), where.get("hetsched.io/isa", "")[:-1]):
            found.append(f"{name} wants {wanted}, {node_name} has {where}")
        if kind == "affine" and node_name != _affine(pod):
            found.append(f"{name} is on {node_name} instead of {_affine(pod)}")
        granted = allocation.get("gpus", [])
        if [card["milli"] for card in granted] != {"whole": [1000], "shared": [300]}.get(kind, []):
            found.append(f"{name} holds the cards {granted}")
        for card in granted:
            cards[card["uuid"]] += card["milli"]
        if kind == "pinned":
            own = _ids(allocation.get("cpus") or "")
            if len(own) != 2 or own & cpus[node_name] or len({cpu // 8 for cpu in own}) != 1:
                found.append(f"{name} holds the CPUs {sorted(own)} of {node_name}, taken: {sorted(cpus[node_name])}")
            cpus[node_name] |= own
        if kind == "gang":
            gangs[labels["pod-group.scheduling.sigs.k8s.io/name"]] += 1
        if kind == "impossible":
            found.append(f"{name} is on {node_name}")
    found += [f"{name} is asked for {millis}m CPU" for name, millis in cpu.items() if millis > 16000]
    found += [f"card {uuid} is granted {milli} times over 1000" for uuid, milli in cards.items() if milli > 1000]
    return found + [f"{count} of 4 pods of {gang} have a node" for gang, count in gangs.items() if count != 4]


def _millis(quantity: str) -> int:
    return int(quantity[:-1]) if quantity.endswith("m") else 1000 * int(quantity)


def _affine(pod: Json) -> str:
    node = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(node["nodeSelectorTerms"][0]["matchExpressions"][0]["values"][0])


def _ids(cpus: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, cpus.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
