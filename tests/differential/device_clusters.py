"""Random small clusters with devices (`resource.k8s.io`), and pods with claims to schedule on them.

Each case has a few nodes, pools of local devices and one pool that several nodes can access, claims that are allocated
to placed pods, and pods with unallocated claims. The values come from small sets, so that selectors, taints, counters
and capacities often decide. A case depends only on its seed.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from .clusters import Case, Object
from .device_allocations import SELECTORS, DeviceAllocations, Result, quantity

API = "resource.k8s.io/v1"
GPU, NIC = "gpu.example.com", "nic.example.com"
RESOURCES = ("example.com/gpu", "example.com/nic", "deviceclass.resource.kubernetes.io/any")
RACKS = ("a", "b")
TAINTS = ("broken", "reserved")
SETS = ("memory", "slices")
_DRIVER_SELECTORS = {GPU: f'device.driver == "{GPU}"', NIC: f'device.driver == "{NIC}"'}
_OTHER_SELECTORS = [text for text in SELECTORS if text not in _DRIVER_SELECTORS.values()]
_POLICIES: tuple[Object, ...] = (
    {},
    {"default": "2", "validValues": ["2", "4", "8"]},
    {"default": "1", "validRange": {"min": "1", "max": "6"}},
    {"default": "2", "validRange": {"min": "2", "step": "2"}},
)


def draw_devices(seed: int) -> Case:
    """Return the case of a seed."""
    return _Draw(Random(f"devices-{seed}"), _Size()).case(seed)


def draw_contended_devices(seed: int, pods: int) -> Case:
    """Return a case with more nodes and devices and `pods` pods, some of which use unallocated claims of other pods."""
    size = _Size(nodes=(6, 10), slices=(2, 4), pods=(pods, pods), claims=(1, 2, 3), shared=0.05, extended=0.0)
    return _Draw(Random(f"contended-{seed}"), size).case(seed)


def draw_raced_devices(seed: int, pods: int) -> Case:
    """Return a case with `pods` pods of several claims that mostly request one device each.

    Some pods use unallocated claims of other pods.
    """
    mostly_one, mostly_none = (1,) * 9 + (2,), (0,) * 9 + (1,)
    size = _Size(
        nodes=(3, 5), slices=(5, 8), pods=(pods, pods), claims=(2, 4, 6, 8), requests=mostly_one, counts=mostly_one,
        constraints=mostly_none, shared=0.02, extended=0.0, alternatives=0.1, all_devices=0.01,
    )  # fmt: skip
    return _Draw(Random(f"raced-{seed}"), size).case(seed)


class _Size(NamedTuple):
    """Numbers of objects: least and most nodes, slices of a node and new pods, and values to choose from.

    The values to choose from are the claims of a pod, the requests and the constraints of a claim, and the devices of a
    request. `shared` is the probability that a pod uses an unallocated claim of another pod, `extended` that it
    requests extended resources, `alternatives` that a request has alternatives, and `all_devices` that it asks for all
    devices.
    """

    nodes: tuple[int, int] = (1, 4)
    slices: tuple[int, int] = (1, 2)
    pods: tuple[int, int] = (1, 3)
    claims: tuple[int, ...] = (1, 1, 2)
    requests: tuple[int, ...] = (1, 1, 1, 2, 3)
    counts: tuple[int, ...] = (1, 1, 1, 2, 3)
    constraints: tuple[int, ...] = (0, 0, 0, 1, 2)
    shared: float = 0.0
    extended: float = 0.3
    alternatives: float = 0.25
    all_devices: float = 0.15


class _Draw:
    def __init__(self, random: Random, size: _Size) -> None:
        self._random = random
        self._size = size
        self._objects: list[Object] = []
        self._claims: list[str] = []  # names of allocated claims
        self._open_claims: list[str] = []

    def case(self, seed: int) -> Case:
        nodes = [f"n{number}" for number in range(self._random.randint(*self._size.nodes))]
        self._objects += [self._node(name) for name in nodes]
        for node in nodes:
            if self._chance(0.8):
                self._pool(GPU, f"pool-{node}", [{"nodeName": node}] * self._random.randint(*self._size.slices))
        if self._chance(0.7):
            self._pool(NIC, "fabric", [self._place(nodes) for _ in range(self._random.randint(1, 3))])
        for driver, resource in zip((GPU, NIC), RESOURCES, strict=False):
            served = {"extendedResourceName": resource} if self._chance(0.7) else {}
            self._add("DeviceClass", driver, {"selectors": [_cel(_DRIVER_SELECTORS[driver])]} | served)
        self._add("DeviceClass", "any", {})
        if self._chance(0.2):  # a second class for the same resource
            self._add("DeviceClass", "rival", {"extendedResourceName": RESOURCES[0]})
            created = self._one(("2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"))
            self._objects[-1]["metadata"]["creationTimestamp"] = created
        for number in range(self._random.choice((0, 0, 1))):
            self._taint_rule(f"rule-{number}", nodes)
        allocations = DeviceAllocations(self._objects)
        for number in range(self._random.randint(0, 5)):
            self._allocated_claim(f"used-{number}", self._one(nodes), allocations)
        for number in range(self._one((0, 0, 1, 2))):
            self._objects.append(_pod(f"plain-{number}", [], self._one(nodes)))
            self._objects[-1]["spec"] |= self._containers()
        pods = [self._new_pod(f"new-{number}") for number in range(self._random.randint(*self._size.pods))]
        return Case(seed, self._objects, pods)

    # -- values --------------------------------------------------------------------------------------------------------

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _one(self, values: Any) -> Any:
        return self._random.choice(values)

    def _some(self, values: Any, most: int) -> list[Any]:
        return self._random.sample(list(values), self._random.randint(0, min(most, len(values))))

    def _add(self, kind: str, name: str, spec: Object, api: str = API, **more: Any) -> None:
        self._objects.append({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec, **more})

    # -- nodes and devices ---------------------------------------------------------------------------------------------

    def _node(self, name: str) -> Object:
        labels = {"kubernetes.io/hostname": name} | ({"rack": self._one(RACKS)} if self._chance(0.8) else {})
        resources = {"cpu": "16", "memory": "64Gi", "pods": "110"}
        if self._chance(0.3):  # a device plugin offers the resource, or has no healthy devices
            resources[self._one(RESOURCES[:2])] = self._one(("0", "1", "2", "4"))
        status = {
            "allocatable": resources, "capacity": resources, "conditions": [{"type": "Ready", "status": "True"}],
        }  # fmt: skip
        return {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {},
            "status": status,
        }  # fmt: skip

    def _place(self, nodes: list[str]) -> Object:
        """Return the fields for the nodes of a slice of several nodes, or for devices with nodes of their own."""
        if self._chance(0.25):
            return {"perDeviceNodeSelection": True}
        return self._nodes_of_device(nodes)

    def _nodes_of_device(self, nodes: list[str]) -> Object:
        requirement = {"key": "rack", "operator": "In", "values": [self._one(RACKS)]}
        selector = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
        return dict(self._one(({"allNodes": True}, {"nodeSelector": selector}, {"nodeName": self._one(nodes)})))

    def _pool(self, driver: str, pool: str, places: list[Object]) -> None:
        counters = {
            name: {"n": str(self._random.randint(2, 8)), "m": f"{self._random.randint(2, 8)}Gi"}
            for name in (self._some(SETS, 2) if self._chance(0.4) else ())
        }
        slices: list[Object] = []
        numbers = iter(range(100))
        for place in places:
            devices = [
                self._device(f"d{next(numbers)}", counters) | self._own_nodes(place)
                for _ in range(self._random.randint(1, 4))
            ]
            slices.append({**place, "devices": devices})
        if counters:
            sets = [
                {"name": name, "counters": {counter: {"value": value} for counter, value in amounts.items()}}
                for name, amounts in counters.items()
            ]
            slices.append({"allNodes": True, "sharedCounters": sets})
        if driver == GPU and self._chance(0.05):  # two devices of one name, visible on the same node
            slices.append({**places[0], "devices": [self._device("d0", {})]})
        whole = {"name": pool, "generation": 2, "resourceSliceCount": len(slices) + self._chance(0.05)}
        # A slice of an earlier generation, for nodes that also have access to the newest slice.
        if "perDeviceNodeSelection" not in places[0] and self._chance(0.1):
            old = {**places[0], "devices": [self._device("old", {})]}
            self._add("ResourceSlice", f"{pool}-old", {"driver": driver, "pool": {**whole, "generation": 1}, **old})
        for number, spec in enumerate(slices):
            self._add("ResourceSlice", f"{pool}-{number}", {"driver": driver, "pool": whole, **spec})

    def _own_nodes(self, place: Object) -> Object:
        return self._nodes_of_device(["n0", "n1"]) if place.get("perDeviceNodeSelection") else {}

    def _device(self, name: str, counters: dict[str, dict[str, str]]) -> Object:
        attributes: Object = {
            "model": {"string": self._one(("a", "b"))}, "root": {"int": self._random.randint(0, 2)},
        }  # fmt: skip
        if self._chance(0.5):
            attributes["fast"] = {"bool": self._chance(0.5)}
        memory: Object = {"value": self._one(("4", "8", "16"))}
        device: Object = {"name": name, "attributes": attributes, "capacity": {"memory": memory}}
        if self._chance(0.3):
            device["allowMultipleAllocations"] = True
            policy = self._one(_POLICIES)
            if policy:
                memory["requestPolicy"] = policy
        if self._chance(0.25):
            device["taints"] = [self._taint()]
        if self._chance(0.15):
            device |= {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]}
            device["bindsToNode"] = self._chance(0.5)
        if counters and self._chance(0.7):
            consumed = {name: {"n": {"value": str(self._random.randint(1, 3))}} for name in counters}
            for amounts in consumed.values():
                if self._chance(0.5):
                    amounts["m"] = {"value": f"{self._random.randint(1, 4) * 512}Mi"}
            chosen = self._some(consumed.items(), 2) or [next(iter(consumed.items()))]
            device["consumesCounters"] = [{"counterSet": name, "counters": amounts} for name, amounts in chosen]
        return device

    def _taint(self) -> Object:
        taint = {"key": self._one(TAINTS), "effect": self._one(("NoSchedule", "NoExecute", "None"))}
        return taint | ({"value": self._one(("x", "y"))} if self._chance(0.5) else {})

    def _taint_rule(self, name: str, nodes: list[str]) -> None:
        selector: Object = {}
        if self._chance(0.5):
            selector["driver"] = self._one((GPU, NIC))
        if self._chance(0.5):
            selector["pool"] = self._one(("fabric", f"pool-{self._one(nodes)}"))
        if self._chance(0.5):
            selector["device"] = self._one(("d0", "d1"))
        spec = {"deviceSelector": selector, "taint": self._taint()}
        self._add("DeviceTaintRule", name, spec, "resource.k8s.io/v1")

    # -- claims --------------------------------------------------------------------------------------------------------

    def _claim(self, name: str, devices: Object, status: Object | None = None) -> None:
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        claim = {"apiVersion": API, "kind": "ResourceClaim", "metadata": meta, "spec": {"devices": devices}}
        self._objects.append(claim | ({"status": status} if status else {}))

    def _allocated_claim(self, name: str, node: str, allocations: DeviceAllocations) -> None:
        """Add a claim with a valid allocation of one or two devices, and mostly a placed pod that uses it."""
        there = allocations.on(node)
        if not there:
            return
        requests, results, written = [], [], []
        for number, identity in enumerate(self._random.sample(there, min(len(there), self._random.randint(1, 2)))):
            device = allocations.devices[identity].device
            admin = self._chance(0.1)
            request: Object = {"deviceClassName": identity[0], "allocationMode": "ExactCount", "count": 1}
            request["tolerations"] = [{"operator": "Exists"}]
            result: Object = {
                "request": f"r{number}",
                "driver": identity[0],
                "pool": identity[1],
                "device": identity[2],
            }
            consumed = None
            if device.get("allowMultipleAllocations"):
                memory = device["capacity"]["memory"]
                amount = memory.get("requestPolicy", {}).get("default", memory["value"])
                consumed = {"memory": quantity(amount)}
                share = f"00000000-0000-4000-8000-{self._random.randrange(16**12):012x}"
                result |= {"shareID": share, "consumedCapacity": {"memory": amount}}
            if admin:
                request["adminAccess"] = result["adminAccess"] = True
            requests.append({"name": f"r{number}", "exactly": request})
            results.append(Result(f"r{number}", identity, admin, consumed))
            written.append(result)
        devices = {"requests": requests}
        if allocations.problem({"spec": {"devices": devices}}, node, results):
            return
        allocations.add(results)
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        requirement = {"key": "rack", "operator": "In", "values": [self._one(RACKS)]}
        term: Object = {"matchFields": fields} if self._chance(0.7) else {"matchExpressions": [requirement]}
        allocation: Object = {"devices": {"results": written}}
        if self._chance(0.9):
            allocation["nodeSelector"] = {"nodeSelectorTerms": [term]}
        user = {"resource": "pods", "name": f"pod-{name}", "uid": f"uid-pod-{name}"}
        self._claim(name, devices, {"allocation": allocation, "reservedFor": [user]})
        self._claims.append(name)
        if self._chance(0.8):
            self._objects.append(_pod(f"pod-{name}", [name], node))

    def _new_pod(self, name: str) -> Object:
        claims: list[str] = []
        extended = self._size.extended and self._chance(self._size.extended)
        if extended and self._chance(0.7):
            return self._with_extended(_pod(name, []))
        for number in range(self._one(self._size.claims)):
            if self._claims and self._chance(0.15):
                claims.append(self._one(self._claims))
                continue
            if self._size.shared and self._open_claims and self._chance(self._size.shared):
                claims.append(self._one(self._open_claims))
                continue
            claims.append(f"{name}-{number}")
            if self._chance(0.98):
                self._claim(claims[-1], self._devices_of_claim())
                self._open_claims.append(claims[-1])
        pod = _pod(name, list(dict.fromkeys(claims)))
        return self._with_extended(pod) if extended else pod

    def _with_extended(self, pod: Object) -> Object:
        pod["spec"] |= self._containers()
        return pod

    def _containers(self) -> Object:
        """Return containers that request extended resources, mostly one."""
        init = [self._container(f"init-{number}", 0.6) for number in range(self._one((0, 0, 0, 1, 2, 3)))]
        for container in init:
            if self._chance(0.4):
                container["restartPolicy"] = "Always"
        main = [self._container(f"main-{number}", 0.8) for number in range(self._one((1, 1, 1, 2)))]
        return {"containers": main} | ({"initContainers": init} if init else {})

    def _container(self, name: str, probability: float) -> Object:
        limits = {"cpu": "100m"} if self._chance(0.5) else {}
        if self._chance(probability):
            for resource in self._random.sample(RESOURCES, self._one((1, 1, 1, 2))):
                limits[resource] = str(self._one((0, 1, 1, 1, 2, 3)))
        resources = {"limits": limits} | ({"requests": dict(limits)} if self._chance(0.5) else {})
        return {"name": name, "image": "registry.example.com/main:1", "resources": resources}

    def _devices_of_claim(self) -> Object:
        requests = [self._request(f"r{number}") for number in range(self._one(self._size.requests))]
        devices: Object = {"requests": requests}
        constraints = [self._constraint(requests) for _ in range(self._one(self._size.constraints))]
        if constraints:
            devices["constraints"] = constraints
        return devices

    def _constraint(self, requests: list[Object]) -> Object:
        attribute = f"{self._one((GPU, GPU, NIC))}/{self._one(('model', 'root', 'fast'))}"
        names = [request["name"] for request in requests]
        names += [f"{r['name']}/{each['name']}" for r in requests for each in r.get("firstAvailable", ())]
        single = [request["name"] for request in requests if _asks_one(request)]
        if single and self._chance(0.3):
            return {"distinctAttribute": attribute, "requests": single}
        some = self._some(names, 2)
        return {"matchAttribute": attribute} | ({"requests": some} if some else {})

    def _request(self, name: str) -> Object:
        if self._chance(self._size.alternatives):
            return {"name": name, "firstAvailable": [{"name": sub, **self._wish()} for sub in ("s0", "s1")]}
        admin = {"adminAccess": True} if self._chance(0.1) else {}
        return {"name": name, "exactly": self._wish() | admin}

    def _wish(self) -> Object:
        wish: Object = {"deviceClassName": self._one((GPU, GPU, GPU, NIC, "any")), "allocationMode": "ExactCount"}
        wish["count"] = self._one(self._size.counts)
        if self._chance(0.02):
            wish["deviceClassName"] = "absent"
        if self._chance(self._size.all_devices):
            wish["allocationMode"] = "All"
            del wish["count"]
        if selectors := self._some(_OTHER_SELECTORS, 2 if self._chance(0.5) else 0):
            wish["selectors"] = [_cel(text) for text in selectors]
        if self._chance(0.4):
            wish["tolerations"] = [self._toleration()]
        if self._chance(0.3):
            amount = self._one(("1", "3", "1500m", "5", "9"))
            wish["capacity"] = {"requests": {"memory" if self._chance(0.95) else "absent": amount}}
        return wish

    def _toleration(self) -> Object:
        toleration: Object = {"operator": self._one(("Exists", "Exists", "Equal"))}
        if toleration["operator"] == "Equal" or self._chance(0.5):
            toleration["key"] = self._one(TAINTS)
        if toleration["operator"] == "Equal":
            toleration["value"] = self._one(("x", "y"))
        if self._chance(0.3):
            toleration["effect"] = self._one(("NoSchedule", "NoExecute"))
        return toleration


def _asks_one(request: Object) -> bool:
    return all(each.get("count") == 1 for each in request.get("firstAvailable", [request.get("exactly")]))


def _cel(text: str) -> Object:
    return {"cel": {"expression": text}}


def _pod(name: str, claims: list[str], node: str = "") -> Object:
    spec: Object = {"containers": [{"name": "main", "image": "registry.example.com/main:1"}], "priority": 0}
    spec["resourceClaims"] = [{"name": f"c{number}", "resourceClaimName": claim} for number, claim in enumerate(claims)]
    if node:
        spec["nodeName"] = node
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running" if node else "Pending", "startTime": "2026-01-01T00:00:00Z"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}
