"""Five kinds of clusters for the report, as Kubernetes objects, each with and without faults.

A seed draws the number of healthy nodes and pods. A healthy pod runs on a node that it fits, and no free GPU lacks
other resources. Each fault has the code and the object of the finding that must report it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

Plain = dict[str, Any]
Expected = set[tuple[str, str, str]]


class SeededCluster(NamedTuple):
    """Objects of a cluster, and the (code, kind, name) of the findings that must be reported."""

    objects: list[Plain]
    expected: Expected


def node(
    name: str, *, arch: str = "amd64", isa: str = "", cpu: str = "16", memory: str = "64Gi", gpus: int = 0
) -> Plain:
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    labels |= {"kubernetes.io/arch": arch} if arch else {}
    labels |= {"hetsched.io/isa": isa} if isa else {}
    amounts = {"cpu": cpu, "memory": "64Gi", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def cards(name: str, count: int, *, model: str | None = "A100-SXM4-40GB", zones: int = 0) -> Plain:
    """Return the GPUs of a node; with `zones`, the first half of the GPUs is in node-0, the other half in node-1."""
    listed = []
    for index in range(count):
        card: Plain = {"index": index, "uuid": f"GPU-{name}-{index}", "memoryMiB": 40960, "cores": 6912}
        if model:
            card["model"] = model
        if zones:
            card["numaZone"] = f"node-{index * zones // count}"
        listed.append(card)
    return {
        "apiVersion": "hetsched.io/v1alpha1", "kind": "NodeGpu", "metadata": {"name": name}, "spec": {"cards": listed}
    }  # fmt: skip


def zones(name: str, cpus: int, *, policy: str = "none", manager: str = "none") -> Plain:
    """Return two NUMA zones with `cpus` CPUs each, and the policies of the kubelet."""
    amounts = [{"name": "cpu", "capacity": str(cpus), "allocatable": str(cpus), "available": str(cpus)}]
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": policy},
            {"name": "topologyManagerScope", "value": "pod"},
            {"name": "cpuManagerPolicy", "value": manager},
        ],
        "zones": [
            {
                "name": f"node-{zone}",
                "type": "Node",
                "attributes": [{"name": "hetsched.io/cpus", "value": f"{zone * cpus}-{zone * cpus + cpus - 1}"}],
                "resources": amounts,
            }
            for zone in (0, 1)
        ],
    }


def pod(
    name: str, *, on: str = "", cpu: str = "1", gpus: int = 0, owner: str = "", selector: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None, status: Plain | None = None, **spec: Any,
) -> Plain:  # fmt: skip
    amounts = {"cpu": cpu, "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    meta: Plain = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    if owner:
        meta["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": f"uid-{owner}", "controller": True}
        ]
    meta |= {"annotations": annotations} if annotations else {}
    meta |= {"labels": labels} if labels else {}
    wanted: Plain = {
        "schedulerName": "default-scheduler",
        "containers": [{"name": "main", "image": "app:1", "resources": {"requests": amounts, "limits": amounts}}],
        **({"nodeSelector": selector} if selector else {}),
        **({"nodeName": on} if on else {}),
        **spec,
    }
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": wanted,
        "status": status or {"phase": "Running" if on else "Pending"},
    }  # fmt: skip


AMD64_IMAGE = {"hetsched.io/image-platforms": '{"app:1": ["linux/amd64"]}'}


def instruction_sets(draw: random.Random, *, faults: bool) -> SeededCluster:
    """amd64 and RISC-V nodes; pods on nodes that do not run them."""
    objects = [node(f"x{number}", isa="x86-64-v3") for number in range(draw.randint(2, 6))]
    objects += [node(f"r{number}", arch="riscv64", isa="rv64gcv") for number in range(draw.randint(2, 6))]
    names = [one["metadata"]["name"] for one in objects]
    for number in range(draw.randint(3, 9)):
        on = draw.choice([name for name in names if name.startswith("x")])
        objects.append(pod(f"web-{number}", on=on, selector={"kubernetes.io/arch": "amd64"}, annotations=AMD64_IMAGE))
        on = draw.choice([name for name in names if name.startswith("r")])
        isa = {"hetsched.io/isa": "rv64gc"}
        objects.append(pod(f"edge-{number}", on=on, selector={"kubernetes.io/arch": "riscv64"}, annotations=isa))
    if not faults:
        return SeededCluster(objects, set())
    riscv = {"kubernetes.io/arch": "riscv64"}
    objects += [
        node("rplain", arch="riscv64", isa="rv64gc"),
        pod("vector", on="rplain", selector=riscv, annotations={"hetsched.io/isa": "rv64gcv"}),
        pod("wrong-image", on="r0", annotations=AMD64_IMAGE),
        pod("anywhere-a", on="x0", owner="anywhere", annotations=AMD64_IMAGE),
        pod("anywhere-b", on="x1", owner="anywhere", annotations=AMD64_IMAGE),
    ]
    return SeededCluster(
        objects,
        {
            ("IsaMissingExtension", "Pod", "default/vector"),
            ("ImagePlatformMissing", "Pod", "default/wrong-image"),
            ("MayLandOnWrongNode", "ReplicaSet", "default/anywhere"),
        },
    )


def gpus(draw: random.Random, *, faults: bool) -> SeededCluster:
    """GPU nodes; stranded and fragmented GPUs."""
    objects: list[Plain] = []
    for number in range(draw.randint(2, 5)):
        name = f"g{number}"
        objects += [node(name, cpu="32", gpus=4), cards(name, 4, zones=2), zones(name, 16)]
        used = draw.randint(1, 2) if faults else draw.randint(1, 4)
        objects += [pod(f"train-{number}-{place}", on=name, gpus=1, cpu="4") for place in range(used)]
    if not faults:
        return SeededCluster(objects, set())
    for number in range(len([one for one in objects if one["kind"] == "Node"])):
        objects.append(pod(f"fill-{number}", on=f"g{number}", gpus=1, cpu="4"))
    objects += [
        node("full", cpu="32", gpus=4), cards("full", 4, zones=2), zones("full", 16),
        pod("hog", on="full", cpu="28"),
        pod("neighbour", on="full", gpus=1, cpu="4"),
        pod("wide", gpus=4, cpu="4"),
    ]  # fmt: skip
    return SeededCluster(
        objects,
        {
            ("GpuStranded", "Node", "full"),
            ("PodWaits", "Pod", "default/wide"),
            ("GpuFragmented", "Pod", "default/wide"),
        },
    )


def _device_user(name: str, on: str, **devices: str) -> Plain:
    """Return a running pod with a claim, and one device of each health."""
    resources = [
        {"resourceID": device, "health": health, **({"message": "too hot"} if health == "Unhealthy" else {})}
        for health, device in devices.items()
    ]
    container = {
        "name": "main", "state": {"running": {}},
        "allocatedResourcesStatus": [{"name": "claim:gpu/r", "resources": resources}],
    }  # fmt: skip
    status = {"phase": "Running", "containerStatuses": [container]}
    claims = [{"name": "gpu", "resourceClaimName": name}]
    made = pod(name, on=on, cpu="100m", status=status, resourceClaims=claims)
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu", "request": "r"}]
    return made


def kubelets(draw: random.Random, *, faults: bool) -> SeededCluster:
    """Nodes whose kubelets align NUMA zones; rejected pods, and pending pods and a gang that would be rejected."""
    objects: list[Plain] = []
    count = draw.randint(2, 4)
    for number in range(count):
        name = f"n{number}"
        objects += [
            node(name, cpu="16", gpus=4), cards(name, 4, zones=2),
            zones(name, 8, policy="single-numa-node", manager="static"),
        ]  # fmt: skip
        objects.append(pod(f"aligned-{number}", on=name, cpu=str(draw.randint(2, 4)), gpus=1))
    if not faults:
        return SeededCluster(objects, set())
    rejected = {
        "phase": "Failed", "reason": "TopologyAffinityError",
        "message": "Pod was rejected: Resources cannot be allocated with Topology locality",
    }  # fmt: skip
    foreign = {
        "phase": "Pending",
        "containerStatuses": [
            {
                "name": "main",
                "state": {"waiting": {"reason": "ErrImagePull", "message": "no match for platform in manifest"}},
            }
        ],
    }
    gang = {"pod-group.scheduling.sigs.k8s.io/name": "ring", "pod-group.scheduling.sigs.k8s.io/min-available": "2"}
    objects += [
        _device_user("burnt", "n0", Healthy="d0", Unhealthy="d1"),
        _device_user("silent", "n1", Unknown="d2"),
        pod("refused", on="n0", cpu="10", gpus=1, status=rejected),
        pod("foreign", on="n1", cpu="100m", status=foreign),
        pod("across", cpu="10", gpus=1),
        *(pod(f"ring-{place}", cpu="2", gpus=3, labels=gang) for place in (0, 1)),
    ]
    return SeededCluster(
        objects,
        {
            ("DeviceUnhealthy", "Node", "n0"),
            ("DeviceHealthUnknown", "Node", "n1"),
            ("KubeletRejectedPods", "Node", "n0"),
            ("ImageDoesNotRun", "Node", "n1"),
            ("KubeletWouldReject", "Pod", "default/across"),
            ("KubeletWouldReject", "PodGroup", "default/ring"),
            ("PodNeverFits", "Pod", "default/across"),
            ("PodNeverFits", "PodGroup", "default/ring"),
        },
    )


def pending_pods(draw: random.Random, *, faults: bool) -> SeededCluster:
    """Plain nodes; pods that wait for different reasons."""
    count = draw.randint(2, 8)
    objects = [node(f"p{number}", cpu="8") for number in range(count)]
    objects += [pod(f"run-{number}", on=f"p{number}", cpu=str(draw.randint(4, 6))) for number in range(count)]
    if not faults:
        return SeededCluster(objects, set())
    objects += [
        pod("large-a", cpu="6", owner="large"),
        pod("large-b", cpu="6", owner="large"),
        pod("huge", cpu="64"),
        pod("odd", annotations={"hetsched.io/isa": "rv64nonsense"}),
        pod("gated", schedulingGates=[{"name": "example.com/quota"}]),
        pod("small", cpu="1"),
    ]
    return SeededCluster(
        objects,
        {
            ("PodWaits", "ReplicaSet", "default/large"),
            ("PodNeverFits", "Pod", "default/huge"),
            ("PodMisconfigured", "Pod", "default/odd"),
            ("PodGated", "Pod", "default/gated"),
            ("PodFits", "Pod", "default/small"),
        },
    )


def node_facts(draw: random.Random, *, faults: bool) -> SeededCluster:
    """Nodes with all facts, and nodes whose facts are missing or unreadable."""
    objects = [node(f"f{number}") for number in range(draw.randint(2, 6))]
    objects += [pod(f"run-{number}", on=f"f{number}") for number in range(2)]
    objects += [node("gpu", cpu="32", gpus=2), cards("gpu", 2, zones=2), zones("gpu", 16)]
    objects += [pod("model", on="gpu", gpus=1, annotations={"hetsched.io/gpu-model": "A100"})]
    if not faults:
        return SeededCluster(objects, set())
    needs = {"hetsched.io/isa": "x86-64-v3+avx512f"}
    objects += [
        node("bare", arch=""), node("odd", isa="rv64nonsense"),
        pod("unsure", on="f0", selector={"kubernetes.io/arch": "amd64"}, annotations=needs),
        node("nameless", cpu="32", gpus=2), cards("nameless", 2, model=None, zones=2), zones("nameless", 16),
        node("unzoned", cpu="32", gpus=2), cards("unzoned", 2),
    ]  # fmt: skip
    return SeededCluster(
        objects,
        {
            ("NodeIsaUnknown", "Cluster", ""),
            ("NodeFactUnreadable", "Node", "odd"),
            ("IsaUnknown", "Pod", "default/unsure"),
            ("GpuModelUnknown", "Cluster", ""),
            ("NumaUnknown", "Cluster", ""),
        },
    )


KINDS: dict[str, Callable[..., SeededCluster]] = {
    made.__name__: made for made in (instruction_sets, gpus, kubelets, pending_pods, node_facts)
}


def seeded_cluster(kind: str, seed: int, *, faults: bool) -> SeededCluster:
    """Return a cluster of a kind; the same seed gives the same healthy part."""
    return KINDS[kind](random.Random(f"{kind}/{seed}"), faults=faults)
