"""Random nodes with memory by NUMA node, and Guaranteed pods: admissions by the kubelet's code and by the model.

The static memory manager decides alone: the CPU manager has the policy `none`, and there are no devices. A case depends
only on its seed.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hetsched.engine.numa.memory_manager import Block, MemoryZone, occupied
from hetsched.engine.numa.resource_managers import ContainerDemands, ZoneResources
from hetsched.engine.numa.topology_manager import verdict

from ..objects import Object
from .admissions import Kubelet

MIB = 1 << 20
MEMORY, SMALL, LARGE = "memory", "hugepages-2Mi", "hugepages-1Gi"
PAGES = {SMALL: 2 * MIB, LARGE: 1024 * MIB}


def draw(seed: int) -> Object:
    """Return a node and its pods, in the format of `tests/kube/kubelet_verdicts`."""
    random = Random(seed)
    numa, reserved = [], []
    for number in range(random.choice((1, 2, 2, 3, 4, 4, 5))):
        pages = {SMALL: random.choice((0, 512, 1024)), LARGE: random.choice((0, 1, 2, 4))}
        sizes = {str(PAGES[kind] >> 10): count for kind, count in pages.items()}
        plain = random.choice((1, 2, 4, 4, 8)) << 30
        total = plain + sum(PAGES[kind] * count for kind, count in pages.items())
        has_cpus = not number or random.random() < 0.8
        cores = [{"threads": [2 * number + one], "socket": 0, "cache": number} for one in range(2 * has_cpus)]
        distances = {str(other): 10 if other == number else 21 for other in range(8)}
        numa.append({"id": number, "distances": distances, "cores": cores, "memory": total, "hugePages": sizes})
        limits = {MEMORY: random.choice((128, 512)) * MIB} if not number or random.random() < 0.5 else {}
        if pages[SMALL] and random.random() < 0.3:
            limits[SMALL] = 64 * MIB
        if limits:
            reserved.append({"numa": number, "limits": limits})
    kubelet = {
        "topologyPolicy": random.choice(("none", "best-effort", "restricted", "restricted", "single-numa-node")),
        "topologyScope": random.choice(("container", "pod")), "topologyOptions": {},
        "cpuPolicy": "none", "cpuOptions": {}, "reservedCPUs": "", "reservedMillis": 0,
        "memoryPolicy": "Static", "reservedMemory": reserved,
    }  # fmt: skip
    names = [f"p{number}" for number in range(random.randint(1, 8))]
    pods = [_pod(random, name, names[:place]) for place, name in enumerate(names)]
    return {"node": {"numa": numa, "kubelet": kubelet, "devices": {}}, "pods": pods}


def _pod(random: Random, name: str, earlier: list[str]) -> Object:
    kinds = [kind for kind in (SMALL, LARGE) if random.random() < 0.3]

    def container(label: str, **fields: Any) -> Object:
        amounts = {MEMORY: random.choice((64, 256, 1024, 2048, 3072, 6144)) * MIB, "cpu": "10m"}
        amounts |= {kind: random.choice((1, 2)) * 1024 * MIB for kind in kinds}
        resources = {key: str(value) for key, value in amounts.items()}
        return {"name": label, "resources": {"requests": resources, "limits": resources}, **fields}

    spec: Object = {"containers": [container(f"c{number}") for number in range(random.choice((1, 1, 2)))]}
    spec["initContainers"] = [
        container(f"i{number}", **({"restartPolicy": "Always"} if random.random() < 0.3 else {}))
        for number in range(random.choice((0, 0, 1, 2)))
    ]
    ended = ",".join(other for other in earlier if random.random() < 0.15)
    return {"metadata": {"name": name, "uid": name, "annotations": {"ended": ended}}, "spec": spec}


def theirs(case: Object, kubelet: Kubelet) -> list[tuple[str, list[Block]]]:
    """Return the reason and the blocks of the running containers of each pod, by the kubelet's code."""
    answer = kubelet.ask(case)
    assert not answer["error"], answer["error"]
    found = []
    for pod, one in zip(case["pods"], answer["pods"], strict=True):
        blocks = [
            Block(sum(1 << number for number in block["numa"]), block["kind"], block["size"])
            for container in _containers(pod)
            if one["reason"] == "" and not _ends(container)
            for block in one["containers"][container["name"]]["memory"] or ()
        ]
        found.append((one["reason"], sorted(blocks)))
    return found


def ours(case: Object) -> list[tuple[str, list[Block]]]:
    """Return the same by the model."""
    node, kubelet = case["node"], case["node"]["kubelet"]
    limits = {one["numa"]: one["limits"] for one in kubelet["reservedMemory"]}
    empty = tuple(_zone(one, limits.get(one["id"], {})) for one in node["numa"])
    cpus = tuple(len(one["cores"]) for one in node["numa"])
    none = (0,) * len(cpus)
    running: dict[str, tuple[Block, ...]] = {}
    found = []
    for pod in case["pods"]:
        for name in pod["metadata"]["annotations"]["ended"].split(","):
            running.pop(name, None)
        held = occupied(empty, [block for blocks in running.values() for block in blocks])
        machine = ZoneResources(cpus, cpus, none, none, memory=held)
        demands = tuple(
            ContainerDemands(0, 0, _ends(one), memory=_asked(one["resources"]["requests"])) for one in _containers(pod)
        )
        given = verdict(kubelet["topologyPolicy"], kubelet["topologyScope"] == "pod", machine, demands)
        if not given.reason:
            running[pod["metadata"]["name"]] = given.memory
        found.append((given.reason, sorted(given.memory)))
    return found


def _containers(pod: Object) -> list[Object]:
    return [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]


def _ends(container: Object) -> bool:
    return container["name"].startswith("i") and "restartPolicy" not in container


def _asked(requests: dict[str, str]) -> tuple[tuple[str, int], ...]:
    return tuple((kind, int(requests[kind])) for kind in (MEMORY, SMALL, LARGE) if kind in requests)


def _zone(numa: Object, limits: dict[str, int]) -> MemoryZone:
    pages = {kind: numa["hugePages"][str(size >> 10)] * size for kind, size in PAGES.items()}
    totals = {MEMORY: numa["memory"] - sum(pages.values()), **pages}
    free = tuple((kind, total - limits.get(kind, 0)) for kind, total in totals.items())
    return MemoryZone(free, free)
