"""Less common features of Kubernetes, each added to the objects of a whole case.

`add_feature` chooses one feature. Features are not combined, so that they meet the common ones often enough.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from random import Random

from .objects import Object, made

HOST_PORTS = (80, 443)
ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
DRIVER = "csi.example.com"


def add_feature(objects: list[Object], pods: list[Object], random: Random) -> None:
    """Add one feature to the cluster `objects` and the `pods` that are judged on it."""
    random.choice(FEATURES)(objects, pods, random)


def _of_kind(objects: list[Object], kind: str) -> Iterator[Object]:
    return (each for each in objects if each["kind"] == kind)


def _containers(pod: Object) -> list[Object]:
    return [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]


def _host_network(objects: list[Object], pods: list[Object], random: Random) -> None:
    """Add pods of the host network, whose container ports are host ports."""
    for pod in pods:
        if random.random() < 0.5:
            pod["spec"]["hostNetwork"] = True
            for container in pod["spec"]["containers"]:
                container["ports"] = [{"containerPort": random.choice(HOST_PORTS)}]


def _init_container_ports(objects: list[Object], pods: list[Object], random: Random) -> None:
    """Add host ports of init containers, which are used only if these are sidecars."""
    for pod in pods:
        port = {"containerPort": 80, "hostPort": random.choice(HOST_PORTS)}
        container: Object = {"name": "first", "image": "example", "ports": [port]}
        if random.random() < 0.5:
            container["restartPolicy"] = "Always"
        pod["spec"]["initContainers"] = [container]


def _pod_resources(objects: list[Object], pods: list[Object], random: Random) -> None:
    """Add requests and limits of whole pods."""
    for pod in [*_of_kind(objects, "Pod"), *pods]:
        if random.random() < 0.5:
            continue
        for container in _containers(pod):
            if random.random() < 0.6:
                container["resources"] = {}
        amounts = {"cpu": random.choice(("4", "6")), "memory": random.choice(("4Gi", "7Gi"))}
        if random.random() < 0.3:
            del amounts[random.choice(("cpu", "memory"))]
        fields = random.choice((("requests",), ("limits",), ("requests", "limits")))
        pod["spec"]["resources"] = {field: dict(amounts) for field in fields}


def _attach_limits(objects: list[Object], pods: list[Object], random: Random) -> None:
    """Add limits of the volumes that a CSI driver attaches to a node."""
    for node in list(_of_kind(objects, "Node")):
        driver: Object = {"name": DRIVER, "nodeID": node["metadata"]["name"], "topologyKeys": []}
        if random.random() < 0.8:
            driver["allocatable"] = {"count": random.choice((0, 1, 1, 2))}
        if random.random() < 0.8:
            csi = made("storage.k8s.io/v1", "CSINode", node["metadata"]["name"])
            objects.append({**csi, "spec": {"drivers": [driver]}})
    late = {"provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
    objects.append({**made("storage.k8s.io/v1", "StorageClass", "attached"), **late})
    objects.append({**made("storage.k8s.io/v1", "CSIDriver", DRIVER), "spec": {}})
    names = [f"attached-{number}" for number in range(4)]
    for name in names:
        objects += _bound_claim(name, "attached", "ReadWriteMany")
    for pod in [*_of_kind(objects, "Pod"), *pods]:
        if pod["metadata"]["namespace"] == "default":
            claims = random.sample(names, random.choice((1, 1, 2)))
            pod["spec"]["volumes"] = [_claim_volume(claim) for claim in claims]


def _bound_claim(name: str, storage_class: str, mode: str) -> list[Object]:
    """Return a claim and the CSI volume that is bound to it."""
    size = {"storage": "1Gi"}
    claim = made("v1", "PersistentVolumeClaim", name, "default")
    claim["metadata"] |= {"uid": f"uid-{name}", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    claim["spec"] = {
        "accessModes": [mode], "resources": {"requests": size}, "storageClassName": storage_class, "volumeName": name,
    }  # fmt: skip
    claim["status"] = {"phase": "Bound", "accessModes": [mode], "capacity": size}
    volume = made("v1", "PersistentVolume", name)
    volume["spec"] = {
        "accessModes": [mode], "capacity": size, "storageClassName": storage_class,
        "csi": {"driver": DRIVER, "volumeHandle": name},
        "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name, "uid": f"uid-{name}"},
    }  # fmt: skip
    volume["status"] = {"phase": "Bound"}
    return [claim, volume]


def _claim_volume(claim: str) -> Object:
    return {"name": claim, "persistentVolumeClaim": {"claimName": claim}}


def _zone_labels(objects: list[Object], pods: list[Object], random: Random) -> None:
    """Add the zone and region labels by which volumes follow their nodes."""
    for node in _of_kind(objects, "Node"):
        labels: dict[str, str] = node["metadata"]["labels"]
        if random.random() < 0.7:
            labels[ZONE] = random.choice("xy")
            if random.random() < 0.4:  # kubelets since 1.17 set both labels
                labels[OLD_ZONE] = labels[ZONE]
        if random.random() < 0.3:
            labels[REGION] = random.choice("rs")
    for volume in _of_kind(objects, "PersistentVolume"):
        labels = {random.choice((ZONE, OLD_ZONE)): random.choice(("x", "y", "x__y"))}
        if random.random() < 0.3:
            labels[REGION] = "r"
        volume["metadata"]["labels"] = labels


def _local_volumes(objects: list[Object], pods: list[Object], random: Random) -> None:
    """Add volumes without a provisioner, which claims find by size, mode and label."""
    binding = random.choice(("WaitForFirstConsumer", "WaitForFirstConsumer", "Immediate"))
    static = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": binding}
    objects.append({**made("storage.k8s.io/v1", "StorageClass", "local"), **static})
    names = [node["metadata"]["name"] for node in _of_kind(objects, "Node")]
    for number in range(random.randint(0, 3)):
        volume = made("v1", "PersistentVolume", f"local-{number}")
        if random.random() < 0.3:
            volume["metadata"]["labels"] = {"tier": "a"}
        hosts = random.sample(names, random.randint(1, len(names)))
        on_hosts = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": hosts}]}
        volume["spec"] = {
            "accessModes": [random.choice(("ReadWriteOnce", "ReadWriteMany"))],
            "capacity": {"storage": random.choice(("1Gi", "5Gi"))}, "storageClassName": "local",
            "volumeMode": random.choice(("Filesystem", "Filesystem", "Block")), "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [on_hosts]}},
        }  # fmt: skip
        objects.append({**volume, "status": {"phase": "Available"}})
    claims = ("of-local-0", "of-local-1")
    for name in claims:
        claim = made("v1", "PersistentVolumeClaim", name, "default")
        claim["metadata"]["uid"] = f"uid-{name}"
        claim["spec"] = {
            "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem", "storageClassName": "local",
            "resources": {"requests": {"storage": random.choice(("1Gi", "3Gi"))}},
        }  # fmt: skip
        if random.random() < 0.2:
            claim["spec"]["selector"] = {"matchLabels": {"tier": "a"}}
        objects.append({**claim, "status": {"phase": "Pending"}})
    for pod in pods:
        pod["metadata"]["namespace"] = "default"
        pod["spec"]["volumes"] = [_claim_volume(claim) for claim in random.sample(claims, random.choice((1, 2)))]


def _resizes(objects: list[Object], pods: list[Object], random: Random) -> None:
    """Add placed pods whose kubelet has not applied, or has rejected, new requests of their containers."""
    for pod in _of_kind(objects, "Pod"):
        statuses = []
        for container in pod["spec"]["containers"]:
            if "cpu" not in container.get("resources", {}).get("requests", {}):
                continue
            status: Object = {"name": container["name"], "ready": True, "started": True, "restartCount": 0}
            status |= {"image": "example", "imageID": "example"}
            if random.random() < 0.7:
                status["allocatedResources"] = {"cpu": random.choice(("100m", "1", "3"))}
            if random.random() < 0.7:
                status["resources"] = {"requests": {"cpu": random.choice(("100m", "1", "3"))}}
            statuses.append(status)
        pod["status"]["containerStatuses"] = statuses
        if random.random() < 0.5:
            reason = random.choice(("Infeasible", "Deferred"))
            pod["status"]["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]


def _affinity_label_keys(objects: list[Object], pods: list[Object], random: Random) -> None:
    """Add label keys to the terms of pod affinity; the API server adds their values to the selector."""
    for pod in [*_of_kind(objects, "Pod"), *pods]:
        version = pod["metadata"]["labels"].get("version")
        for kind in ("podAffinity", "podAntiAffinity"):
            rules = pod["spec"].get("affinity", {}).get(kind, {})
            for term in rules.get("requiredDuringSchedulingIgnoredDuringExecution", ()):
                field, operator = random.choice((("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")))
                term[field] = ["version"]
                if version:
                    selector = term["labelSelector"] = copy.deepcopy(term["labelSelector"])
                    wanted = {"key": "version", "operator": operator, "values": [version]}
                    selector.setdefault("matchExpressions", []).append(wanted)


def _declared_features(objects: list[Object], pods: list[Object], random: Random) -> None:
    """Add features that kubelets declare, and pods that require them."""
    names = ("RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport", "ExtendWebSocketsToKubelet")
    for node in _of_kind(objects, "Node"):
        node["status"]["declaredFeatures"] = sorted(random.sample(names, random.randint(0, len(names))))
    exits = {"operator": "In", "values": [137]}
    for pod in pods:
        if random.random() < 0.6:
            action = random.choice(("Restart", "RestartAllContainers", "RestartAllContainers"))
            random.choice(_containers(pod))["restartPolicyRules"] = [{"action": action, "exitCodes": exits}]
        if random.random() < 0.5:
            pod["spec"]["hostNetwork"] = random.random() < 0.8
            pod["spec"]["hostUsers"] = random.random() < 0.3


def _scheduling_gates(objects: list[Object], pods: list[Object], random: Random) -> None:
    """Add scheduling gates, with which a pod is not scheduled even on an empty node."""
    for pod in pods:
        names = random.sample(("example.com/quota", "example.com/review"), random.randint(0, 2))
        pod["spec"]["schedulingGates"] = [{"name": name} for name in names]


def _images(objects: list[Object], pods: list[Object], random: Random) -> None:
    """Add images of nodes and containers, by tag, by digest and without a tag."""
    images = ("web", "web:1", "registry.example.com:5000/db", "registry.example.com:5000/db:2", f"db@sha256:{'0' * 64}")
    for node in _of_kind(objects, "Node"):
        present = random.sample(images, random.randint(0, len(images)))
        node["status"]["images"] = [
            {"names": [name if name.rfind(":") > name.rfind("/") else f"{name}:latest"], "sizeBytes": size << 20}
            for name in present
            for size in (random.choice((10, 30, 200, 700, 3000)),)
        ]
    for pod in pods:
        for container in _containers(pod):
            container["image"] = random.choice(images)


FEATURES: tuple[Callable[[list[Object], list[Object], Random], None], ...] = (
    _host_network, _init_container_ports, _pod_resources, _attach_limits, _zone_labels, _local_volumes, _resizes,
    _affinity_label_keys, _declared_features, _scheduling_gates, _images,
)  # fmt: skip
