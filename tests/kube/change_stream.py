"""A random stream of pods, in-place resizes, label changes and device taints on a small live cluster.

A round creates more pods than fit at once, changes running pods, nodes and devices in random order, and deletes some
pods. `settle` then removes all reasons not to place a pod, so that a pod without a node at the end is lost.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.kube.devices import DRIVER, MERGE, device, exactly, make_claim, make_class, make_slice, using
from tests.kube.feature_gates import RULES, TAINT_RULES, enabled, serving
from tests.kube.pod_history import HOSTNAME, Period, Recorder
from tests.kube.scene import make, make_pod

Json = dict[str, Any]
ARGUMENTS = (enabled(*TAINT_RULES), serving(RULES.api_version)) if TAINT_RULES else ()
STRATEGIC = "application/strategic-merge-patch+json"
ZONE, TIER = "topology.kubernetes.io/zone", "tier"
NAMES = tuple(f"n{number}" for number in range(4))
CAPACITY = dict.fromkeys(NAMES, 4000)
ZONES = {name: f"z{number % 2}" for number, name in enumerate(NAMES)}
# Nodes that refuse the growth of pods, with the reason that their kubelet reports.
REFUSALS = {"n2": "Infeasible", "n3": "Deferred"}
DEVICES = 2  # of each node
CLAIMS = 6  # at most, of 8 devices
PODS_OF_ROUND, CHANGES = 20, 30
SMALL, LARGE = "100m", "3500m"
TAINT = {"key": "broken", "effect": "NoSchedule"}
_MEMBER, _RISKY, _SPREAD = {"member": "1"}, {"risky": "1"}, {"spread": "1"}


def create_cluster(api: Api) -> None:
    make_class(api)
    for name in NAMES:
        make_slice(api, name, *(device(f"gpu-{number}") for number in range(DEVICES)))
        status = {
            "allocatable": {"cpu": "4", "memory": "32Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        make(api, NODES, name, metadata={"labels": {HOSTNAME: name, ZONE: ZONES[name], TIER: "gold"}}, status=status)


class ChangeStream:
    """The changes of one cluster. `await_devices` and `await_labels` wait until the scheduler has stored a change."""

    def __init__(
        self,
        api: Api,
        recorder: Recorder,
        draw: random.Random,
        await_devices: Callable[[set[str]], None],
        await_labels: Callable[[set[str]], None],
    ) -> None:
        self.api, self.recorder, self.draw = api, recorder, draw
        self.done: dict[str, int] = {}
        self._await_devices, self._await_labels = await_devices, await_labels
        self._tainted: dict[str, tuple[int, str]] = {}  # device: mark, way (rule or slice)
        self._unlabelled: dict[str, int] = {}  # node: mark
        self._round = self._created = self._claims = 0

    def begin_round(self) -> None:
        self._round, self._created, self._claims = self._round + 1, 0, 0

    def change(self) -> None:
        """Make one random change."""
        steps = {
            self.create: 8, self.resize: 6, self.grow: 2, self.relabel: 5, self.taint: 2, self.untaint: 1,
            self.label_node: 1, self.unlabel_node: 2, self.delete: 1,
        }  # fmt: skip
        (step,) = self.draw.choices(list(steps), list(steps.values()))
        with suppress(ApiFailure):  # the object was deleted in the meantime, or a pod cannot be changed at the moment
            if step():
                self.done[step.__name__] = self.done.get(step.__name__, 0) + 1

    # -- pods ----------------------------------------------------------------------------------------------------------

    def create(self) -> bool:
        """Create a pod of a random kind."""
        if self._created >= PODS_OF_ROUND:
            return False
        name, self._created = f"r{self._round}-{self._created}", self._created + 1
        kinds = ["plain", "plain", "near", "apart", "spread", "gold", "device", "device"]
        kind = self.draw.choice(kinds[: -2 if self._claims >= CLAIMS else None])
        cpu = self.draw.choice(("500m", "1000m", "1500m"))
        spec, labels = self._spec(kind, name)
        make_pod(self.api, name, cpu=cpu, labels=labels, **spec)
        return True

    def _spec(self, kind: str, name: str) -> tuple[Json, dict[str, str]]:
        """Return the fields and the labels of a pod of a kind; create its claim."""
        if kind in ("near", "apart"):
            labels, key = (_MEMBER, "podAffinity") if kind == "near" else (_RISKY, "podAntiAffinity")
            term = {"labelSelector": {"matchLabels": labels}, "topologyKey": HOSTNAME}
            return {"affinity": {key: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}, {}
        if kind == "spread":
            spread = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
            return {"topologySpreadConstraints": [spread | {"labelSelector": {"matchLabels": _SPREAD}}]}, _SPREAD
        if kind == "gold":
            return {"nodeSelector": {TIER: "gold"}}, {}
        if kind == "device":
            self._claims += 1
            make_claim(self.api, name, exactly("gpu"))
            return {"resourceClaims": using(name)}, {}
        return {}, {}

    def running(self) -> list[Json]:
        pods: list[Json] = json.loads(self.api.get(PODS.path(namespace="default")))["items"]
        running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
        return [pod for pod in running if "deletionTimestamp" not in pod["metadata"]]

    def _a_running_pod(self) -> str:
        running = self.running()
        return str(self.draw.choice(running)["metadata"]["name"]) if running else ""

    def resize(self) -> bool:
        """Request another amount of CPU for a running pod."""
        name = self._a_running_pod()
        if name:
            self._request(name, self.draw.choice(("200m", "500m", "1000m", "2000m", "3000m")))
        return bool(name)

    def grow(self) -> bool:
        """Request more CPUs than a pod can have on a node that refuses growth."""
        names = [str(pod["metadata"]["name"]) for pod in self.running() if pod["spec"]["nodeName"] in REFUSALS]
        if names:
            self._request(self.draw.choice(names), LARGE)
        return bool(names)

    def _request(self, name: str, cpu: str) -> None:
        container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
        self._patch(PODS.path(namespace="default", name=name, part="resize"), {"spec": {"containers": [container]}})

    def relabel(self) -> bool:
        """Set or remove a label of a running pod that the affinity or the spread of other pods selects."""
        name = self._a_running_pod()
        if name:
            (label,) = self.draw.choice((_MEMBER, _RISKY, _SPREAD))
            self._label(PODS.path(namespace="default", name=name), {label: self.draw.choice(("1", None))})
        return bool(name)

    def delete(self) -> bool:
        name = self._a_running_pod()
        if name:
            self.api.send("DELETE", PODS.path(namespace="default", name=name))
        return bool(name)

    def _label(self, path: str, labels: dict[str, str | None]) -> None:
        self._patch(path, {"metadata": {"labels": labels}})

    def _patch(self, path: str, body: Json) -> None:
        self.api.send("PATCH", path, json.dumps(body).encode(), content=STRATEGIC)

    # -- devices and nodes ---------------------------------------------------------------------------------------------

    def taint(self) -> bool:
        """Taint a device, by a rule or in its slice, also while it is allocated."""
        devices = [f"{node}/gpu-{number}" for node in NAMES for number in range(DEVICES)]
        free = [name for name in devices if name not in self._tainted]
        if len(self._tainted) >= 4:
            return False
        name, way = self.draw.choice(free), self.draw.choice(("rule", "slice"))
        self._tainted[name] = (0, way)
        if way == "rule":
            pool, _, number = name.partition("/")
            selector = {"driver": DRIVER, "pool": pool, "device": number}
            make(self.api, RULES, name.replace("/", "-"), spec={"deviceSelector": selector, "taint": TAINT})
        else:
            self._publish(name.partition("/")[0])
        self._await_devices(set(self._tainted))
        self._tainted[name] = (self.recorder.mark(), way)
        self._set_periods()
        return True

    def untaint(self) -> bool:
        if not self._tainted:
            return False
        name = self.draw.choice(sorted(self._tainted))
        first, way = self._tainted.pop(name)
        self._end_period(name, "taint", first)
        if way == "rule":
            self.api.send("DELETE", RULES.path(name=name.replace("/", "-")))
        else:
            self._publish(name.partition("/")[0])
        return True

    def _publish(self, node: str) -> None:
        """Write the devices of a node with their current taints, as their driver does."""
        devices = [device(f"gpu-{number}") for number in range(DEVICES)]
        for each in devices:
            if self._tainted.get(f"{node}/{each['name']}", (0, ""))[1] == "slice":
                each["taints"] = [TAINT]
        path = RESOURCE_SLICES.path(name=f"{node}-{DRIVER}")
        self.api.send("PATCH", path, json.dumps({"spec": {"devices": devices}}).encode(), content=MERGE)

    def unlabel_node(self) -> bool:
        """Remove the label of a node that pods select; one node keeps it."""
        if len(self._unlabelled) + 1 >= len(NAMES):
            return False
        name = self.draw.choice([node for node in NAMES if node not in self._unlabelled])
        self._label(NODES.path(name=name), {TIER: None})
        self._await_labels({*self._unlabelled, name})
        self._unlabelled[name] = self.recorder.mark()
        self._set_periods()
        return True

    def label_node(self) -> bool:
        if not self._unlabelled:
            return False
        name = self.draw.choice(sorted(self._unlabelled))
        self._end_period(name, "label", self._unlabelled.pop(name))
        self._label(NODES.path(name=name), {TIER: "gold"})
        return True

    def _set_periods(self) -> None:
        periods = self.recorder.history.periods
        known = {(period.place, period.first) for period in periods}
        tainted = [Period(name, "taint", first) for name, (first, _) in self._tainted.items()]
        tainted += [Period(name, "label", first) for name, first in self._unlabelled.items()]
        periods += [period for period in tainted if (period.place, period.first) not in known]

    def _end_period(self, place: str, reason: str, first: int) -> None:
        """End a period before the change that ends it."""
        periods = self.recorder.history.periods
        periods.remove(Period(place, reason, first))
        periods.append(Period(place, reason, first, self.recorder.mark()))

    # -- the end of a round --------------------------------------------------------------------------------------------

    def allow_all(self) -> None:
        """Remove all taints, and label all nodes."""
        while self._tainted:
            self.untaint()
        while self._unlabelled:
            self.label_node()

    def make_room(self) -> None:
        """Resize all running pods to a small amount, and give them the labels that other pods need."""
        for pod in self.running():
            requests = pod["spec"]["containers"][0]["resources"]["requests"]
            name, labels = pod["metadata"]["name"], pod["metadata"].get("labels", {})
            with suppress(ApiFailure):
                if requests["cpu"] != SMALL:
                    self._request(name, SMALL)
                if labels.get("member") != "1" or "risky" in labels or "spread" in labels:
                    own = PODS.path(namespace="default", name=name)
                    self._label(own, {"member": "1", "risky": None, "spread": None})

    def delete_all(self) -> None:
        """Delete all pods, and their claims as the claim controller does once the pods are deleted."""
        self.api.send("DELETE", PODS.path(namespace="default"))

    def delete_claims(self) -> None:
        for claim in json.loads(self.api.get(RESOURCE_CLAIMS.path(namespace="default")))["items"]:
            path = RESOURCE_CLAIMS.path(namespace="default", name=claim["metadata"]["name"])
            empty = {"status": {"reservedFor": None, "allocation": None}}
            self.api.send("PATCH", f"{path}/status", json.dumps(empty).encode(), content=MERGE)
            self.api.send("PATCH", path, json.dumps({"metadata": {"finalizers": None}}).encode(), content=MERGE)
            with suppress(ApiFailure):  # removing the finalizers of a deleted claim deletes it
                self.api.send("DELETE", path)


def delete_device_objects(api: Api) -> None:
    for resource in (RULES, RESOURCE_SLICES, DEVICE_CLASSES):
        api.send("DELETE", resource.path())


def stored_taints() -> set[str]:
    """Return the tainted devices of the scheduler's database, as `pool/device`."""
    from hetsched.inventory.models import Cluster

    known = [device for cluster in Cluster.objects.all() for device in cluster.definitions.devices.devices]
    return {f"{device.id.pool}/{device.id.name}" for device in known if device.taints}


def stored_charges() -> dict[str, int]:
    """Return the thousandths of CPUs that the scheduler's database charges on each node."""
    from hetsched.inventory.models import Node

    return {node.name: node.requested.get("cpu", 0) for node in Node.objects.filter(gone=False)}


def stored_unlabelled() -> set[str]:
    """Return the nodes of the scheduler's database that lack the label that pods select."""
    from hetsched.inventory.models import Node

    return {node.name for node in Node.objects.filter(gone=False) if TIER not in node.report.labels}
