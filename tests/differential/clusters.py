"""Random small clusters as Kubernetes objects, with pods to schedule on them.

Each case has a few nodes, placed pods, namespaces, volumes and disruption budgets that the pods refer to. The values
come from small sets, so that selectors, topologies, ports and taints often match, and nodes are often almost full. A
case depends only on its seed.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from .features import add_feature
from .objects import Object, made

NAMESPACES = {"default": {"env": "test"}, "team": {"env": "test"}, "ops": {"env": "live"}}
APPS = ("web", "db", "batch")
ZONES = ("x", "y", "z")
TAINTS = (("dedicated", "gpu"), ("dedicated", "db"), ("spot", ""))
READY_TAINTS = {"False": "node.kubernetes.io/not-ready", "Unknown": "node.kubernetes.io/unreachable"}
PORTS = (80, 443)
ADDRESSES = ("", "10.0.0.1", "10.0.0.2")
CLASSES = ("late", "late-in-x", "now")


class Case(msgspec.Struct):
    """A cluster (`objects`) and the pods that are judged on it, each on the cluster without the others."""

    seed: int
    objects: list[Object]
    pods: list[Object]


def draw(seed: int) -> Case:
    """Return the case of a seed."""
    return _Draw(Random(seed)).case(seed)


class _Draw:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._claims: list[str] = []
        self._bound_claims: list[str] = []
        self._single_pod_claims: set[str] = set()
        self._ports_in_use: set[tuple[str, int]] = set()

    def case(self, seed: int) -> Case:
        nodes = [self._node(f"n{number}") for number in range(self._random.randint(1, 6))]
        objects = [made("v1", "Namespace", name, labels=labels) for name, labels in NAMESPACES.items()]
        objects += nodes
        objects += self._storage()
        names = [node["metadata"]["name"] for node in nodes]
        placed = [self._placed_pod(number, self._one(names)) for number in range(self._random.randint(0, 12))]
        objects += placed
        if self._chance(0.4):
            objects += [self._budget(f"budget-{number}", placed) for number in range(self._random.randint(1, 2))]
        pods = [self._pod(f"new-{number}") for number in range(self._random.randint(1, 4))]
        if self._chance(0.3):
            add_feature(objects, pods, self._random)
        return Case(seed, objects, pods)

    # -- values --------------------------------------------------------------------------------------------------------

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _one(self, values: Any) -> Any:
        return self._random.choice(values)

    def _some(self, values: Any, least: int = 1) -> list[Any]:
        return self._random.sample(list(values), self._random.randint(least, len(values)))

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _node(self, name: str) -> Object:
        labels = {"kubernetes.io/hostname": name}
        if self._chance(0.85):
            labels["zone"] = self._one(ZONES)
        if self._chance(0.6):
            labels["disk"] = self._one(("ssd", "hdd"))
        if self._chance(0.5):
            labels["generation"] = self._one(("1", "2", "3", "new"))
        spec: Object = {}
        taints = [{"key": key, "value": value, "effect": self._effect()} for key, value in TAINTS if self._chance(0.12)]
        if self._chance(0.05):
            spec["unschedulable"] = True
            taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
        ready = self._ready()
        if ready in READY_TAINTS and self._chance(0.8):
            taints.append({"key": READY_TAINTS[ready], "effect": "NoSchedule"})
        if taints:
            spec["taints"] = taints
        allocatable = {
            "cpu": str(self._one((2, 4, 8))), "memory": f"{self._one((4, 8))}Gi", "pods": str(self._one((3, 6, 110))),
            "ephemeral-storage": f"{self._one((10, 20))}Gi",
        }  # fmt: skip
        if self._chance(0.4):
            allocatable["example.com/gadget"] = str(self._random.randint(0, 3))
        if self._chance(0.3):
            allocatable["hugepages-2Mi"] = "128Mi"
        status = {
            "allocatable": allocatable,
            "capacity": allocatable,
            "conditions": [{"type": "Ready", "status": ready}],
        }
        return {**made("v1", "Node", name, labels=labels), "spec": spec, "status": status}

    def _ready(self) -> str:
        """Return the status of the condition Ready; the node controller may not have set its taint yet."""
        return str(self._one(("False", "Unknown"))) if self._chance(0.06) else "True"

    def _effect(self) -> str:
        effect: str = self._one(("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule"))
        return effect

    # -- volumes -------------------------------------------------------------------------------------------------------

    def _storage(self) -> list[Object]:
        if not self._chance(0.3):
            return []
        late = {"provisioner": "csi.example.com", "volumeBindingMode": "WaitForFirstConsumer"}
        in_x = [{"matchLabelExpressions": [{"key": "zone", "values": ["x"]}]}]
        found = [
            {**made("storage.k8s.io/v1", "StorageClass", "late"), **late},
            {**made("storage.k8s.io/v1", "StorageClass", "late-in-x"), **late, "allowedTopologies": in_x},
            {
                **made("storage.k8s.io/v1", "StorageClass", "now"),
                "provisioner": "csi.example.com",
                "volumeBindingMode": "Immediate",
            },
        ]
        for number in range(self._random.randint(1, 3)):
            found += self._claim(f"claim-{number}")
        return found

    def _claim(self, name: str) -> list[Object]:
        self._claims.append(name)
        mode = "ReadWriteOncePod" if self._chance(0.2) else "ReadWriteOnce"
        if mode == "ReadWriteOncePod":
            self._single_pod_claims.add(name)
        spec: Object = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
        spec["storageClassName"] = self._one(CLASSES)
        claim = {
            **made("v1", "PersistentVolumeClaim", name, "default"),
            "spec": spec,
            "status": {"phase": "Pending"},
        }
        claim["metadata"]["uid"] = f"uid-{name}"
        if not self._chance(0.6):
            return [claim]
        self._bound_claims.append(name)
        volume = f"volume-{name}"
        spec["volumeName"] = volume
        claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
        claim["status"] = {"phase": "Bound", "accessModes": [mode], "capacity": {"storage": "1Gi"}}
        its: Object = {
            "accessModes": [mode], "capacity": {"storage": "1Gi"}, "storageClassName": spec["storageClassName"],
            "csi": {"driver": "csi.example.com", "volumeHandle": volume},
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name, "uid": f"uid-{name}"},
        }  # fmt: skip
        if self._chance(0.7):
            zones = {"matchExpressions": [{"key": "zone", "operator": "In", "values": self._some(ZONES[:2])}]}
            its["nodeAffinity"] = {"required": {"nodeSelectorTerms": [zones]}}
        return [{**made("v1", "PersistentVolume", volume), "spec": its, "status": {"phase": "Bound"}}, claim]

    # -- disruption budgets --------------------------------------------------------------------------------------------

    def _budget(self, name: str, pods: list[Object]) -> Object:
        """Return a budget with the status that the disruption controller would write for these placed pods."""
        namespace, app, unavailable = self._one(tuple(NAMESPACES)), self._one(APPS), self._one((0, 0, 1))
        selected = [
            pod["metadata"] for pod in pods
            if pod["metadata"]["namespace"] == namespace and pod["metadata"]["labels"]["app"] == app
        ]  # fmt: skip
        spec = {"maxUnavailable": unavailable, "selector": {"matchLabels": {"app": app}}}
        healthy = sum("deletionTimestamp" not in meta for meta in selected)
        desired = max(len(selected) - unavailable, 0)
        status = {
            "disruptionsAllowed": max(healthy - desired, 0), "currentHealthy": healthy, "desiredHealthy": desired,
            "expectedPods": len(selected), "observedGeneration": 1,
        }  # fmt: skip
        return {**made("policy/v1", "PodDisruptionBudget", name, namespace), "spec": spec, "status": status}

    # -- pods ----------------------------------------------------------------------------------------------------------

    def _pod(self, name: str, on: str = "") -> Object:
        namespace = self._one(("default", "default", "team", "ops"))
        labels = {"app": self._one(APPS)}
        if self._chance(0.3):
            labels["version"] = self._one(("1", "2"))
        found = made("v1", "Pod", name, namespace, labels=labels)
        found["metadata"]["uid"] = f"uid-{name}"
        spec: Object = {"containers": [self._container(f"c{number}") for number in range(self._one((1, 1, 2)))]}
        if self._chance(0.15):
            spec["initContainers"] = [self._init_container(f"i{number}") for number in range(self._one((1, 2)))]
        if self._chance(0.1):
            spec["overhead"] = {"cpu": "250m", "memory": "128Mi"}
        spec["priority"] = self._one((0, 0, 5, 10)) if on else self._one((0, 5, 10, 20))
        if not on and self._chance(0.1):
            spec["preemptionPolicy"] = "Never"
        if self._chance(0.2):
            spec["nodeSelector"] = {"disk": self._one(("ssd", "hdd"))}
        affinity = self._affinity()
        if affinity:
            spec["affinity"] = affinity
        if self._chance(0.4):
            spec["tolerations"] = [self._toleration() for _ in range(self._one((1, 2)))]
        if self._chance(0.25):
            spec["topologySpreadConstraints"] = [self._spread() for _ in range(self._one((1, 1, 2)))]
        claims = self._bound_claims if on else [*self._claims, "missing"]  # claims of running pods have volumes
        if self._claims and claims and namespace == "default" and self._chance(0.6):
            claim = self._one(claims)
            spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
            if on and claim in self._single_pod_claims:
                self._bound_claims.remove(claim)
        return {**found, "spec": spec}

    def _placed_pod(self, number: int, on: str) -> Object:
        found = self._pod(f"placed-{number}", on)
        found["spec"]["nodeName"] = on
        for container in found["spec"]["containers"]:
            # No two pods of a node use a host port: kube-scheduler counts a port as free as soon as one of them leaves.
            if {(on, port["hostPort"]) for port in container.get("ports", ())} & self._ports_in_use:
                del container["ports"]
            self._ports_in_use.update((on, port["hostPort"]) for port in container.get("ports", ()))
        # Different times, because kube-scheduler chooses arbitrarily among victims of equal priority and start time.
        # Both times of a pod are equal, because hetsched uses the creation time and kube-scheduler the start time.
        start = f"2026-01-01T00:{self._random.randint(0, 59):02d}:{number:02d}Z"
        found["metadata"]["creationTimestamp"] = start
        if self._chance(0.08):
            found["metadata"] |= {"deletionTimestamp": "2026-01-02T00:00:00Z", "deletionGracePeriodSeconds": 30}
        return {**found, "status": {"phase": "Running", "startTime": start}}

    def _container(self, name: str) -> Object:
        requests: dict[str, str] = {}
        if self._chance(0.85):
            requests["cpu"] = self._one(("100m", "500m", "1", "1500m", "2"))
        if self._chance(0.6):
            requests["memory"] = self._one(("128Mi", "1Gi", "2Gi", "3Gi"))
        if self._chance(0.1):
            requests["ephemeral-storage"] = self._one(("1Gi", "8Gi"))
        limits = {}
        if self._chance(0.12):
            requests["example.com/gadget"] = limits["example.com/gadget"] = self._one(("1", "2"))
        if self._chance(0.06):
            requests["hugepages-2Mi"] = limits["hugepages-2Mi"] = "64Mi"
        resources: Object = {"requests": requests, "limits": limits}
        if self._chance(0.1):  # a limit without a request
            resources = {"limits": {**limits, "cpu": "1", "memory": "1Gi"}}
        found: Object = {"name": name, "image": "example", "resources": resources}
        if self._chance(0.15):
            port: Object = {"containerPort": 80, "hostPort": self._one(PORTS)}
            if self._chance(0.4):
                port["protocol"] = self._one(("TCP", "UDP"))
            if address := self._one(ADDRESSES):
                port["hostIP"] = address
            found["ports"] = [port]
        return found

    def _init_container(self, name: str) -> Object:
        found: Object = {"name": name, "image": "example"}
        found["resources"] = {"requests": {"cpu": self._one(("100m", "1", "3")), "memory": self._one(("64Mi", "2Gi"))}}
        if self._chance(0.5):
            found["restartPolicy"] = "Always"
        return found

    def _toleration(self) -> Object:
        if self._chance(0.1):
            return {"operator": "Exists"}
        if self._chance(0.1):
            return {"key": self._one(tuple(READY_TAINTS.values())), "operator": "Exists", "effect": "NoSchedule"}
        key, value = self._one(TAINTS)
        found: Object = {"key": key}
        if self._chance(0.5):
            found["operator"] = "Exists"
        else:
            found["value"] = value if self._chance(0.8) else "other"
        if self._chance(0.6):
            found["effect"] = self._effect()
        return found

    def _affinity(self) -> Object:
        found: Object = {}
        if self._chance(0.2):
            terms = [self._node_term() for _ in range(self._one((1, 1, 2)))]
            found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        if self._chance(0.15):
            preferred = [{"weight": self._weight(), "preference": self._node_term()} for _ in range(self._one((1, 2)))]
            found.setdefault("nodeAffinity", {})["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
        for kind, probability in (("podAffinity", 0.15), ("podAntiAffinity", 0.2)):
            if self._chance(probability):
                terms = [self._pod_term() for _ in range(self._one((1, 1, 2)))]
                found[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
            if self._chance(0.1):
                weighted = {"weight": self._weight(), "podAffinityTerm": self._pod_term()}
                found.setdefault(kind, {})["preferredDuringSchedulingIgnoredDuringExecution"] = [weighted]
        return found

    def _weight(self) -> int:
        return self._random.choice((1, 10, 50, 100))

    def _node_term(self) -> Object:
        if self._chance(0.15):
            operator = self._one(("In", "NotIn"))
            return {
                "matchFields": [{"key": "metadata.name", "operator": operator, "values": [f"n{self._one((0, 1))}"]}]
            }
        return {"matchExpressions": [self._node_expression() for _ in range(self._one((1, 1, 2)))]}

    def _node_expression(self) -> Object:
        operator = self._one(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
        if operator in ("Gt", "Lt"):
            return {"key": "generation", "operator": operator, "values": [self._one(("1", "2"))]}
        key, values = self._one((("zone", ZONES), ("disk", ("ssd", "hdd")), ("generation", ("1", "2"))))
        if operator in ("Exists", "DoesNotExist"):
            return {"key": key, "operator": operator}
        return {"key": key, "operator": operator, "values": self._some(values)}

    def _label_selector(self) -> Object:
        if self._chance(0.7):
            return {"matchLabels": {"app": self._one(APPS)}}
        operator = self._one(("In", "NotIn", "Exists", "DoesNotExist"))
        expression: Object = {"key": self._one(("app", "version")), "operator": operator}
        if operator in ("In", "NotIn"):
            expression["values"] = self._some(APPS if expression["key"] == "app" else ("1", "2"))
        return {"matchExpressions": [expression]}

    def _pod_term(self) -> Object:
        term: Object = {
            "topologyKey": self._one(("zone", "kubernetes.io/hostname")),
            "labelSelector": self._label_selector(),
        }
        if self._chance(0.2):
            term["namespaces"] = self._some(tuple(NAMESPACES))
        if self._chance(0.2):
            term["namespaceSelector"] = self._one(({}, {"matchLabels": {"env": "test"}}))
        return term

    def _spread(self) -> Object:
        found: Object = {
            "topologyKey": self._one(("zone", "kubernetes.io/hostname")), "maxSkew": self._one((1, 1, 2)),
            "whenUnsatisfiable": self._one(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
            "labelSelector": self._label_selector(),
        }  # fmt: skip
        if found["whenUnsatisfiable"] == "DoNotSchedule" and self._chance(0.3):
            found["minDomains"] = self._one((1, 2, 3, 4))
        if self._chance(0.25):
            found["nodeAffinityPolicy"] = self._one(("Honor", "Ignore"))
        if self._chance(0.25):
            found["nodeTaintsPolicy"] = self._one(("Honor", "Ignore"))
        if self._chance(0.2):
            found["matchLabelKeys"] = ["version"]
        return found
