"""Hypothesis strategies for Kubernetes objects as users write them, some of them with invalid values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Plain = dict[str, Any]

NAMES = st.sampled_from(["a", "web-1", "x.y"])
KEYS = st.sampled_from(["app", "tier", "example.org/kind"])
VALUES = st.sampled_from(["", "web", "V1.2_x"])
LABELS = st.dictionaries(KEYS, VALUES, max_size=2)
CPU = st.sampled_from([0, 1, "250m", "1.5", 4])
MEMORY = st.sampled_from([0, "100Mi", "1Gi", 1500, "2G"])
NUMBER = st.sampled_from(["0", "1", "2", "x", ""])


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Plain]:
    """Draw an object with any subset of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def listed(items: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=most)


ISAS = st.sampled_from(["rv64gc", "RV64IMFDV", "x86-64-v3+avx512f", "arm64", "rva22u64_v", "z80", "", "rv64gc_zfoo"])
ISA_LABELS = st.sampled_from(["RV64GC", "x86-64-v3_avx512f", "ARM64", "ARM", ""])

POD_ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "hetsched.io/isa": ISAS,
        "hetsched.io/emulated-isa": ISAS,
        "hetsched.io/cross-isa": ISAS,
        "oks/gpu-number": NUMBER,
        "oks/gpu-memory": st.sampled_from(["0", "8192", "16Gi"]),
        "oks/gpu-core": st.sampled_from(["0", "5120", "-1"]),
        "hetsched.io/gpu-milli": st.sampled_from(["1", "250", "1000", "0", "1001"]),
        "hetsched.io/gpu-model": st.sampled_from(["A100", "A100 | H100", "nvidia", "|"]),
        "hetsched.io/gpu-model-match": st.sampled_from(["exact", "prefix", "fuzzy"]),
        "topology.crane.io/topology-awareness": st.sampled_from(["true", "false", "maybe"]),
        "hetsched.io/topology-awareness": st.sampled_from(["true", "false"]),
        "topology.crane.io/cpu-policy": st.sampled_from(["none", "numa", "static"]),
        "hetsched.io/cpu-policy": st.sampled_from(["none", "exclusive"]),
        "hetsched.io/load-profile": st.sampled_from(["busy", "peaks=09-17", "lazy", ""]),
        "hetsched.io/expected-watts": st.sampled_from(["0", "350", "-1", "350W"]),
        "hetsched.io/expected-usage": st.sampled_from(['{"cpu": "1500m", "memory": 7}', "{}", "no"]),
        "hetsched.io/policy": st.sampled_from(["binpack", "No", ""]),
        "hetsched.io/image-platforms": st.sampled_from(['{"a:1": ["linux/amd64"], "b:2": "x"}', "{}", "no"]),
        "hetsched.io/allocation": st.sampled_from(
            [
                '{"v":1,"gpus":[{"index":0,"milli":500,"memoryMiB":100}],"zones":[{"name":"node-0","cpus":"0-3"}],'
                '"isa":{"mode":"native","required":"rv64gc"},"policy":"exclusive"}',
                '{"v":2}',
                "",
            ]
        ),
        "example.org/note": st.just("kept out"),
    },
)
POD_LABELS = st.fixed_dictionaries(
    {},
    optional={
        "app": VALUES,
        "ARCH": ISA_LABELS,
        "QEMU": ISA_LABELS,
        "hetsched.io/isa": ISA_LABELS,
        "scheduling.x-k8s.io/pod-group": st.sampled_from(["g", "other"]),
        "pod-group.scheduling.sigs.k8s.io/name": st.sampled_from(["g", ""]),
        "pod-group.scheduling.sigs.k8s.io/min-available": st.sampled_from(["3", "all"]),
    },
)

RESOURCES = st.builds(
    lambda requests, limits: {"requests": requests, "limits": limits},
    some(**{"cpu": CPU, "memory": MEMORY, "ephemeral-storage": MEMORY, "example.org/fpga": st.just(2)}),
    some(**{"nvidia.com/gpu": st.integers(0, 2), "amd.com/gpu": st.integers(0, 1)}),
) | st.builds(lambda both: {"limits": both}, st.fixed_dictionaries({"cpu": CPU, "memory": MEMORY}))
PORTS = listed(
    st.fixed_dictionaries(
        {"containerPort": st.integers(1, 3)},
        optional={"hostPort": st.integers(0, 3), "protocol": st.sampled_from(["TCP", "UDP"])},
    )
)
CONTAINER = some(
    image=st.sampled_from(["a:1", "b:2", "c:3"]),
    resources=RESOURCES,
    ports=PORTS,
    restartPolicyRules=st.sampled_from([[{"action": action}] for action in ("Restart", "RestartAllContainers")]),
    volumeMounts=st.sampled_from([[{"name": "a"}], [{"name": "a"}, {"name": "e", "bindMountOptions": ["noexec"]}]]),
)
INIT = st.builds(
    lambda container, restart: container | restart, CONTAINER, some(restartPolicy=st.sampled_from(["Always"]))
)

SET_EXPRESSIONS = listed(
    st.fixed_dictionaries({"key": KEYS, "operator": st.sampled_from(["Exists", "DoesNotExist"])})
    | st.fixed_dictionaries(
        {"key": KEYS, "operator": st.sampled_from(["In", "NotIn"]), "values": st.lists(VALUES, min_size=1, max_size=2)}
    )
)
SELECTOR = some(matchLabels=LABELS, matchExpressions=SET_EXPRESSIONS)
ARCH_TERM = st.builds(
    lambda archs: {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": archs}]},
    st.lists(st.sampled_from(["amd64", "riscv64"]), min_size=1, max_size=2),
)
NODE_TERM = (
    some(
        matchExpressions=SET_EXPRESSIONS,
        matchFields=st.just([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]),
    )
    | ARCH_TERM
)
POD_TERM = st.fixed_dictionaries(
    {"topologyKey": KEYS, "labelSelector": SELECTOR},
    optional={
        "namespaces": listed(st.sampled_from(["ns", "default"])),
        "namespaceSelector": SELECTOR,
        "matchLabelKeys": st.just(["app"]),
        "mismatchLabelKeys": st.just(["tier"]),
    },
)
WEIGHT = st.sampled_from([1, 50, 100])
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
POD_AFFINITY = some(
    **{
        REQUIRED: listed(POD_TERM),
        PREFERRED: listed(st.fixed_dictionaries({"weight": WEIGHT, "podAffinityTerm": POD_TERM})),
    }
)
AFFINITY = some(
    nodeAffinity=some(
        **{
            REQUIRED: st.builds(
                lambda terms: {"nodeSelectorTerms": terms}, st.lists(NODE_TERM, min_size=1, max_size=2)
            ),
            PREFERRED: listed(st.fixed_dictionaries({"weight": WEIGHT, "preference": NODE_TERM})),
        }
    ),
    podAffinity=POD_AFFINITY,
    podAntiAffinity=POD_AFFINITY,
)
SPREAD = listed(
    st.fixed_dictionaries(
        {"topologyKey": KEYS, "maxSkew": st.integers(1, 3), "whenUnsatisfiable": st.just("DoNotSchedule")},
        optional={
            "labelSelector": SELECTOR,
            "minDomains": st.integers(1, 3),
            "nodeTaintsPolicy": st.sampled_from(["Honor", "Ignore"]),
            "nodeAffinityPolicy": st.sampled_from(["Honor", "Ignore"]),
        },
    )
    | st.fixed_dictionaries(
        {"topologyKey": KEYS, "maxSkew": st.just(1), "whenUnsatisfiable": st.just("ScheduleAnyway")}
    )
)
TOLERATIONS = listed(
    st.sampled_from(
        [
            {"operator": "Exists"},
            {"key": "a", "value": "b"},
            {"key": "a", "operator": "Exists", "effect": "NoExecute"},
            {"key": "a", "operator": "Equal"},
        ]
    )
)
ASKED = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}, "volumeMode": "Block"}
VOLUMES: list[Plain] = [
    {"name": "a", "persistentVolumeClaim": {"claimName": "c"}},
    {"name": "b", "persistentVolumeClaim": {"claimName": "p-scratch"}},
    {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": ASKED}}},
    {"name": "d", "rbd": {"image": "x"}},
    {"name": "e", "emptyDir": {}},
    {"name": "f", "image": {"reference": "model"}},
]
POD_SPEC = st.fixed_dictionaries(
    {"containers": st.lists(CONTAINER, min_size=1, max_size=3)},
    optional={
        "initContainers": listed(INIT),
        "nodeName": st.just("n1"),
        "nodeSelector": LABELS | st.just({"kubernetes.io/arch": "arm64"}),
        "affinity": AFFINITY,
        "topologySpreadConstraints": SPREAD,
        "tolerations": TOLERATIONS,
        "hostNetwork": st.booleans(),
        "hostUsers": st.booleans(),
        "priority": st.integers(-5, 5),
        "priorityClassName": st.sampled_from(["high", "none"]),
        "runtimeClassName": st.sampled_from(["kata", "none"]),
        "overhead": some(cpu=CPU, memory=MEMORY),
        "schedulerName": st.sampled_from(["hetsched", "hetsched-spread", "hetsched-", "default-scheduler"]),
        "resourceClaims": st.just([{"name": "c"}]),
        "volumes": listed(st.sampled_from(VOLUMES), 3),
        "schedulingGates": listed(st.sampled_from([{"name": "a.io/hold"}, {"name": "later"}])),
        "schedulingGroup": st.sampled_from([{"podGroupName": name} for name in ("ring", "absent")]),
        "workloadRef": st.just({"name": "train", "podGroup": "workers"}),
    },
)


def _object(version: str, kind: str, name: str, meta: Plain, **body: Any) -> Plain:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **meta}, **body}


PODS = st.builds(
    lambda labels, annotations, more, spec: _object(
        "v1", "Pod", "p", {"labels": labels, "annotations": annotations, **more}, spec=spec
    ),
    POD_LABELS,
    POD_ANNOTATIONS,
    some(
        uid=st.just("u"),
        creationTimestamp=st.just("2026-11-20T10:00:00Z"),
        deletionTimestamp=st.just("2026-11-20T11:00:00Z"),
        ownerReferences=st.just([{"kind": "Job", "name": "j", "controller": True}]),
    ),
    POD_SPEC,
)

NODE_LABELS = st.fixed_dictionaries(
    {},
    optional={
        "kubernetes.io/arch": st.sampled_from(["amd64", "arm64", "riscv64", "s390x"]),
        "ARCH": ISA_LABELS,
        "QEMU": ISA_LABELS,
        "feature.node.kubernetes.io/cpu-cpuid.X86_64_V3": st.just("true"),
        "nvidia.com/gpu.product": st.just("NVIDIA-L4"),
    },
)
NODES = st.builds(
    lambda labels, annotations, spec, status: _object(
        "v1", "Node", "n1", {"labels": labels, "annotations": annotations}, spec=spec, status=status
    ),
    NODE_LABELS,
    some(**{"hetsched.io/isa": ISAS, "hetsched.io/emulated-isa": ISAS, "a.io/b": st.just("kept")}),
    some(
        unschedulable=st.booleans(),
        taints=listed(
            st.just({"key": "a", "effect": "NoSchedule"}) | st.just({"key": "b", "value": "c", "effect": "NoExecute"})
        ),
    ),
    some(
        allocatable=some(cpu=CPU, memory=MEMORY, pods=st.just(110), **{"nvidia.com/gpu": st.integers(0, 2)}),
        conditions=st.sampled_from([[{"type": "Ready", "status": status}] for status in ("True", "False", "Unknown")]),
        images=st.sampled_from([[], [{"names": ["a:1", "x/b:2"], "sizeBytes": 70000000}, {"names": ["c:3"]}]]),
        declaredFeatures=st.sampled_from([[], ["Other", "VolumeBindMountOptions"]]),
    ),
)
GPUS = st.builds(
    lambda cards: _object("hetsched.io/v1alpha1", "NodeGpu", "n1", {}, spec={"cards": cards}),
    st.lists(
        st.fixed_dictionaries(
            {"index": st.integers(0, 9)},
            optional={
                "model": st.sampled_from(["L4", "X9"]),
                "memoryMiB": st.integers(0, 90000),
                "fp32Tflops": st.sampled_from([19.5, 8]),
                "healthy": st.booleans(),
                "maintenance": st.booleans(),
                "links": st.sampled_from(
                    [[], [{"to": 11, "kind": "nvlink", "bandwidthGBs": 50}], [{"to": 12, "kind": "zone"}]]
                ),
                "numaZone": st.just("node-0"),
            },
        ),
        max_size=3,
        unique_by=lambda card: card["index"],
    ),
)
USAGES = st.builds(
    lambda usage, more: _object("hetsched.io/v1alpha1", "NodeUsage", "n1", {}, usage=usage, **more),
    some(cpu=CPU, memory=MEMORY, **{"hetsched.io/disk-mbps": st.integers(0, 9)}),
    some(observedAt=st.just("2026-11-20T10:00:00Z")),
)


POD_METRICS = st.builds(
    lambda usage, more, owner: _object("metrics.k8s.io/v1beta1", "PodMetrics", "p", owner, containers=[usage], **more),
    some(cpu=CPU, memory=MEMORY).map(lambda usage: {"name": "main", "usage": usage}),
    some(timestamp=st.just("2026-11-20T10:00:00Z")),
    some(ownerReferences=st.just([{"kind": "Deployment", "name": "d", "controller": True}])),
)


def _attributes(**values: st.SearchStrategy[str]) -> st.SearchStrategy[list[Plain]]:
    return some(**values).map(lambda found: [{"name": name, "value": value} for name, value in found.items()])


ZONE = st.fixed_dictionaries(
    {"name": st.sampled_from(["node-0", "node-1", "node0"])},
    optional={
        "type": st.just("Node"),
        "costs": st.just([{"name": "node-0", "value": 10}]),
        "attributes": _attributes(
            **{
                "hetsched.io/cpus": st.sampled_from(["0-3", ""]),
                "hetsched.io/siblings": st.just("0,2;1,3"),
                "offline_capacity": st.sampled_from(["2", "lots"]),
            }
        ),
        "resources": listed(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["cpu", "memory"])}, optional={"capacity": CPU, "allocatable": CPU}
            )
        ),
    },
)


def _cpus_of(zone: Plain) -> str:
    """Return the CPUs of a zone, or new ones, because a CPU may not be in two zones."""
    named = {attribute["name"]: attribute["value"] for attribute in zone.get("attributes", [])}
    return named.get("hetsched.io/cpus") or zone["name"]


TOPOLOGIES = st.builds(
    lambda attributes, more: _object(
        "topology.node.k8s.io/v1alpha2", "NodeResourceTopology", "n1", {}, attributes=attributes, **more
    ),
    _attributes(
        cpuManagerPolicy=st.sampled_from(["none", "static"]),
        topologyManagerPolicy=st.just("restricted"),
        topologyManagerScope=st.just("pod"),
        reservedSystemCPUs=st.just("0"),
        powerState=st.sampled_from(["on", "Off", "asleep"]),
        powerHeadroomWatts=st.sampled_from(["0", "1200", "1.2kW"]),
    ),
    some(zones=st.lists(ZONE, max_size=2, unique_by=(lambda zone: zone["name"], _cpus_of))),
)
DEFINITIONS: list[Plain] = [
    _object("v1", "Namespace", "ml", {"labels": {"a": "b"}, "annotations": {"hetsched.io/policy": "spread"}}),
    _object("scheduling.k8s.io/v1", "PriorityClass", "high", {}, value=1000),
    _object("scheduling.k8s.io/v1", "PriorityClass", "usual", {}, value=3, globalDefault=True),
    _object(
        "node.k8s.io/v1", "RuntimeClass", "kata", {}, handler="kata", overhead={"podFixed": {"cpu": "250m"}},
        scheduling={"nodeSelector": {"kata": "yes"}, "tolerations": [{"key": "kata", "operator": "Exists"}]},
    ),
    _object(
        "scheduling.x-k8s.io/v1alpha1", "PodGroup", "g", {},
        spec={"minMember": 3, "scheduleTimeoutSeconds": 10, "minResources": {"cpu": "1500m", "memory": "2Gi"}},
    ),
    _object(
        "scheduling.k8s.io/v1alpha2", "PodGroup", "ring", {}, spec={"schedulingPolicy": {"gang": {"minCount": 4}}},
    ),
    _object("storage.k8s.io/v1", "StorageClass", "fast", {}, provisioner="csi.io", volumeBindingMode="Immediate"),
    _object(
        "v1", "PersistentVolume", "disk", {"labels": {"topology.kubernetes.io/region": "r"}},
        spec={"capacity": {"storage": "1500"}, "accessModes": ["ReadWriteMany"], "hostPath": {"path": "/x"}},
        status={"phase": "Failed"},
    ),
    _object("v1", "PersistentVolumeClaim", "c", {}, spec=ASKED | {"selector": {}}, status={"phase": "Lost"}),
    _object(
        "hetsched.io/v1alpha1", "SchedulingPolicy", "mine", {},
        spec={"plugins": [{"name": "resource-fit"}, {"name": "binpack", "weight": 2, "params": {"shape": [[0, 0]]}}]},
    ),
]  # fmt: skip

CLUSTERS = st.builds(
    lambda pods, details: [*DEFINITIONS, *pods, *(detail for detail in details if detail is not None)],
    st.lists(PODS, max_size=1),
    st.tuples(NODES, st.none() | GPUS, st.none() | USAGES, st.none() | TOPOLOGIES, st.none() | POD_METRICS),
)
