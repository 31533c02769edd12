"""Random nodes with a kubelet configuration and devices, and pods that arrive one after the other.

A case contains one node (`objects`) in the format of `tests/kube/kubelet_verdicts`, and pods as manifests. The
annotation `ended` of a pod lists the pods that end before it arrives. Configurations with which the kubelet does not
start are not drawn. The number of devices with a NUMA node is limited on machines with many NUMA nodes, because the
kubelet compares all combinations of the hints of all resources. A case depends only on its seed.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

from hetsched.contracts.cpuset import format_cpuset

from ..clusters import Case
from ..objects import Object

MIB, GIB = 1 << 20, 1 << 30
MEMORY = "memory"
PAGES = {"hugepages-2Mi": 2 * MIB, "hugepages-1Gi": GIB}  # bytes of a page
GPU, NIC, FPGA = "nvidia.com/gpu", "example.com/nic", "example.com/fpga"
DISTANCES = (11, 12, 16, 21, 32)
MOST_CPUS = 96
MOST_NUMA_NODES = 9  # the number of hints doubles with each NUMA node that has CPUs
DEFAULT_MOST_NUMA_NODES = 8
MOST_COMBINATIONS = 2**15  # of the hints for one container


def draw(seed: int) -> Case:
    """Return the case of a seed."""
    return _Draw(Random(seed)).case(seed)


class _Draw:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._kinds: list[str] = []

    def case(self, seed: int) -> Case:
        numa = self._machine()
        cpus = sorted(cpu for node in numa for core in node["cores"] for cpu in core["threads"])
        self._cpus = len(cpus)
        self._per_node = max(self._cpus // sum(bool(node["cores"]) for node in numa), 1)
        devices = self._devices(numa)
        node = {"numa": numa, "kubelet": self._kubelet(numa, cpus), "devices": devices}
        self._resources = list(devices)
        # The kubelet compares all combinations of the hints of CPUs, devices and kinds of memory.
        most = int(math.log(MOST_COMBINATIONS, 2 ** len(numa))) - 1 - len(devices)
        if most > 0 and self._chance(0.5):
            self._add_memory(node, most)
        names = [f"p{number}" for number in range(self._random.randint(1, 8))]
        return Case(seed, [node], [self._pod(name, names[:place]) for place, name in enumerate(names)])

    # -- values --------------------------------------------------------------------------------------------------------

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _one(self, values: Any) -> Any:
        return self._random.choice(values)

    # -- machines ------------------------------------------------------------------------------------------------------

    def _machine(self) -> list[Object]:
        """Return the NUMA nodes with their online CPUs: at least one of them has at least two CPUs."""
        sockets = self._one((1, 1, 2, 2, 2, 3, 4))
        layout = self._one(("equal", "equal", "sub-NUMA", "sub-NUMA", "wide"))
        per_socket = self._one([size for size in (2, 2, 3, 4) if size * sockets <= MOST_NUMA_NODES])
        per_socket = per_socket if layout == "sub-NUMA" else 1
        zones = max(sockets // 2, 1) if layout == "wide" else sockets * per_socket
        smt = self._one((1, 2, 2, 2, 4, 8))
        most = max(MOST_CPUS // (zones * smt), 1)
        cores = min(self._one((1, 2, 3, 4, 4, 6, 8, 12)), most)
        if sockets > zones:  # each NUMA node contains the cores of several sockets
            cores = max(cores // 2 * 2, 2)
        per_cache = self._one([size for size in range(1, cores + 1) if cores % size == 0])
        numbering = self._one(("threads last", "adjacent", "interleaved"))
        found: list[Object] = []
        for zone in range(zones):
            listed = []
            for core in range(cores):
                threads = [self._cpu(numbering, zone, core, thread, (zones, cores, smt)) for thread in range(smt)]
                socket = zone * sockets // zones + (core * sockets // zones // cores if sockets > zones else 0)
                cache = zone * cores + core // per_cache
                listed.append({"threads": threads, "socket": socket, "cache": cache})
            found.append({"id": zone, "cores": listed})
        if self._chance(0.25):
            self._take_offline(found)
        for _ in range(self._one((0, 0, 0, 0, 0, 0, 0, 1, 2))):
            found.insert(self._random.randint(0, len(found)), {"id": 0, "cores": []})
        gap = self._one((1, 1, 1, 1, 1, 1, 1, 1, 1, 3))
        for position, node in enumerate(found):
            node["id"] = position * gap
        for node in found:
            others = {str(other["id"]): self._one(DISTANCES) for other in found}
            node["distances"] = others | {str(node["id"]): 10}
        return found

    def _cpu(self, numbering: str, zone: int, core: int, thread: int, sizes: tuple[int, int, int]) -> int:
        zones, cores, smt = sizes
        if numbering == "adjacent":
            return (zone * cores + core) * smt + thread
        if numbering == "interleaved":
            return thread * zones * cores + core * zones + zone
        return thread * zones * cores + zone * cores + core

    def _take_offline(self, numa: list[Object]) -> None:
        """Remove threads, so that some cores have fewer threads than others; cores without threads are removed."""
        share = self._one((0.05, 0.2, 0.5))
        for node in numa:
            for core in node["cores"]:
                kept = [cpu for cpu in core["threads"] if not self._chance(share)]
                core["threads"] = kept if node is not numa[0] or core is not node["cores"][0] else core["threads"]
            node["cores"] = [core for core in node["cores"] if core["threads"]]

    def _devices(self, numa: list[Object]) -> dict[str, list[Object]]:
        """Return the devices of each resource; some have no NUMA node, and some are near a NUMA node without CPUs."""
        found: dict[str, list[Object]] = {}
        most_near = len(numa) if len(numa) <= 4 else 2 if len(numa) <= 6 else 1
        for resource in self._random.sample((GPU, NIC, FPGA), self._one((0, 1, 1, 2, 2) if len(numa) <= 4 else (0, 1))):
            near = [node["id"] for node in self._random.sample(numa, min(most_near, len(numa)))]
            unknown = self._one((0.0, 0.0, 0.0, 0.3, 1.0))
            found[resource] = []
            for number in range(self._one((1, 2, 3, 4, 4, 8))):
                device = {"id": f"{resource[-3:]}-{number}"}
                found[resource].append(device if self._chance(unknown) else {**device, "numa": self._one(near)})
        return found

    # -- kubelets ------------------------------------------------------------------------------------------------------

    def _kubelet(self, numa: list[Object], cpus: list[int]) -> Object:
        policy = self._one(("none", "best-effort", "restricted", "single-numa-node"))
        static = len(cpus) > 1 and self._chance(0.9)
        found: Object = {
            "topologyPolicy": policy, "topologyScope": self._one(("container", "pod")), "topologyOptions": {},
            "cpuPolicy": "static" if static else "none",
            "cpuOptions": self._cpu_options(policy, numa) if static else {},
            "reservedCPUs": "", "reservedMillis": 0,
        }  # fmt: skip
        options = found["topologyOptions"]
        if self._chance(0.3) and [node["id"] for node in numa] == list(range(len(numa))):
            options["prefer-closest-numa-nodes"] = "true"
        if len(numa) > DEFAULT_MOST_NUMA_NODES or self._chance(0.1):
            options["max-allowable-numa-nodes"] = str(max(len(numa), DEFAULT_MOST_NUMA_NODES))
        if static:
            count = min(self._one((1, 1, 2, 2, 3, 4)), len(cpus) - 1)
            found["reservedMillis"] = 1000 * count
            if self._chance(0.5):
                chosen = cpus[:count] if self._chance(0.5) else self._random.sample(cpus, count)
                found["reservedCPUs"] = format_cpuset(chosen)
            elif self._chance(0.5):
                found["reservedMillis"] -= 500
        return found

    def _add_memory(self, node: Object, most: int) -> None:
        """Give the NUMA nodes memory of at most `most` kinds, and configure the static memory manager."""
        kubelet, kinds = node["kubelet"], [kind for kind in PAGES if self._chance(0.4)][: most - 1]
        kubelet |= {"memoryPolicy": "Static", "reservedMemory": []}
        self._kinds = [MEMORY, *kinds]
        for numa in node["numa"]:
            pages = {kind: self._one((0, 1, 2, 4)) << 30 for kind in kinds}
            numa["hugePages"] = {str(PAGES[kind] >> 10): size // PAGES[kind] for kind, size in pages.items()}
            numa["memory"] = self._one((1, 2, 4, 4, 8)) * GIB + sum(pages.values())
            if numa is node["numa"][0] or self._chance(0.5):
                limits = {MEMORY: self._one((128, 512)) * MIB}
                limits |= {kind: PAGES[kind] for kind, size in pages.items() if size and self._chance(0.2)}
                kubelet["reservedMemory"].append({"numa": numa["id"], "limits": limits})

    def _cpu_options(self, policy: str, numa: list[Object]) -> dict[str, str]:
        """Return a combination of options with which the kubelet starts."""
        found = set()
        if self._chance(0.35):
            found.add("full-pcpus-only")
        exclusive = ["distribute-cpus-across-numa", "prefer-align-cpus-by-uncorecache", ""]
        if not found:
            exclusive.append("distribute-cpus-across-cores")
        found.add(self._one(exclusive))
        sockets = {core["socket"] for node in numa for core in node["cores"]}
        if len(sockets) <= sum(bool(node["cores"]) for node in numa) and policy != "single-numa-node":
            found.add(self._one(("align-by-socket", "", "")))
        found.add(self._one(("strict-cpu-reservation", "", "")))
        return dict.fromkeys(sorted(found - {""}), "true")

    # -- pods ----------------------------------------------------------------------------------------------------------

    def _pod(self, name: str, earlier: list[str]) -> Object:
        metadata: Object = {"name": name, "namespace": "default", "uid": name}
        ended = [other for other in earlier if self._chance(0.15)]
        if ended:
            metadata["annotations"] = {"ended": ",".join(ended)}
        guaranteed = self._chance(0.85)
        self._released: set[str] = set()
        spec: Object = {}
        if self._chance(0.35):
            spec["initContainers"] = [
                self._container(f"i{number}", guaranteed, sidecar=self._chance(0.4), init=True)
                for number in range(self._one((1, 1, 2, 3)))
            ]
        spec["containers"] = [self._container(f"c{number}", guaranteed) for number in range(self._one((1, 1, 1, 2, 3)))]
        if self._chance(0.08):
            self._add_pod_resources(spec)
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _container(self, name: str, guaranteed: bool, *, sidecar: bool = False, init: bool = False) -> Object:
        near = self._per_node
        cpus = self._one((1, 1, 2, 2, 3, 4, near, near, near - 1, near + 1, near // 2, near * 3 // 2, 2 * near))
        cpu = self._one(("500m", "1500m")) if self._chance(0.12) else str(min(max(cpus, 1), self._cpus))
        limits: dict[str, str] = {"cpu": cpu, "memory": "64Mi"}
        for kind in self._kinds:
            limits[kind] = f"{self._one((1, 2, 2, 4, 5, 8, 12)) * GIB // 2}" if self._chance(0.7) else "1Gi"
        requests = {} if guaranteed else {"cpu": cpu, "memory": "32Mi"}
        for resource in self._resources:
            if self._chance(0.45):
                self._request_devices(resource, limits, sidecar=sidecar, init=init)
        found: Object = {"name": name, "image": "image", "resources": {"limits": limits, "requests": requests}}
        return {**found, "restartPolicy": "Always"} if sidecar else found

    def _request_devices(self, resource: str, limits: dict[str, str], *, sidecar: bool, init: bool) -> None:
        """Request devices, so that later containers use all the devices that an init container releases, or none.

        The device manager chooses at random among the devices that init containers have released.
        """
        if resource in self._released:
            if init:
                return
            limits[resource] = "4"
        else:
            limits[resource] = self._one(("1", "1", "2", "3", "4"))
            if init and not sidecar:
                self._released.add(resource)

    def _add_pod_resources(self, spec: Object) -> None:
        """State pod-level CPU and memory that are enough for all containers together."""
        every = [*spec.get("initContainers", ()), *spec["containers"]]
        millis = sum(_millis(container["resources"]["limits"]["cpu"]) for container in every)
        cpu = str(-(-millis // 1000)) if self._chance(0.5) else f"{millis}m"
        amounts = {"cpu": cpu, "memory": "64Gi"}
        spec["resources"] = {"limits": amounts, "requests": amounts}


def _millis(text: str) -> int:
    return int(text[:-1]) if text.endswith("m") else 1000 * int(text)
