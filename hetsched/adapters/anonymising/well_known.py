"""Keys, values, resources and words that are common to all clusters and do not identify any of them.

The lists contain whole names. A name outside them may identify a company, a team or a machine, even in a domain of
Kubernetes: `node-role.kubernetes.io/acme`. Whether a value is known depends on its key: hetsched must be able to parse
an instruction set, an architecture must be a GOARCH value, and a count must be a number.
Source: Kubernetes documentation, "Well-Known Labels, Annotations and Taints"; NVIDIA GPU feature discovery; AMD node
labeller; Node Feature Discovery.
"""

from __future__ import annotations

import re
from functools import lru_cache

from hetsched import isa
from hetsched.adapters.objects.node_isa import NFD_PREFIX
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_report import CONDITION_TAINTS
from hetsched.contracts.objects.storage import BETA_ZONES
from hetsched.contracts.objects.submitted import WORKLOAD_LABEL
from hetsched.contracts.units import CPU, DISK_MBPS, EPHEMERAL_STORAGE, GPU_RESOURCES, MEMORY, NETWORK_MBPS, PODS

from ..objects import keys

HOST_NAME = "kubernetes.io/hostname"
NAMESPACE_NAME = "kubernetes.io/metadata.name"
ZONES = frozenset({*BETA_ZONES, *BETA_ZONES.values()})
GANGS = frozenset({keys.GANG_NAME, keys.POD_GROUP})

_ISAS = frozenset({keys.ISA, keys.ARCH, keys.QEMU, keys.EMULATED_ISA, keys.CROSS_ISA, keys.ISA_LEVEL})
_MODELS = frozenset({"nvidia.com/gpu.product", "amd.com/gpu.product-name"})
_ARCHS = frozenset({keys.KUBERNETES_ARCH, "beta.kubernetes.io/arch"})
_SYSTEMS = frozenset({"kubernetes.io/os", "beta.kubernetes.io/os"})
_NUMBERS = frozenset({
    keys.GANG_MIN_AVAILABLE, "amd.com/gpu.vram", "nvidia.com/gpu.count", "nvidia.com/gpu.memory",
    "nvidia.com/gpu.replicas", "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor",
    "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index",
})  # fmt: skip
_NAMED_BY_PEOPLE = frozenset({
    HOST_NAME, NAMESPACE_NAME, keys.POOL, WORKLOAD_LABEL, keys.MANAGED_BY, "app.kubernetes.io/name",
    "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/component",
    "app.kubernetes.io/part-of", "node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type",
    "statefulset.kubernetes.io/pod-name", "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid",
})  # fmt: skip
_MARKS = frozenset({
    "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master", "node-role.kubernetes.io/worker",
    "node.kubernetes.io/out-of-service", "node.cloudprovider.kubernetes.io/uninitialized", *GPU_RESOURCES,
    "nvidia.com/gpu.present", "nvidia.com/gpu.family", "nvidia.com/mig.strategy", *CONDITION_TAINTS,
})  # fmt: skip
_WISHES = frozenset({
    *keys.GPU_NUMBER, keys.GPU_MEMORY, keys.GPU_CORE, keys.GPU_MODEL, keys.GPU_MILLI, keys.GPU_MODEL_MATCH,
    *keys.CPU_POLICY, keys.TOPOLOGY_RESULT, keys.LOAD_PROFILE, keys.EXPECTED_USAGE, keys.EXPECTED_WATTS, keys.POLICY,
    keys.ALLOCATION, keys.IMAGE_PLATFORMS,
})  # fmt: skip
_TRUTHS = frozenset(keys.AWARENESS)
_MEANT = _ISAS | _MODELS | _ARCHS | _SYSTEMS | _NUMBERS | _TRUTHS
_KEYS = _MEANT | _NAMED_BY_PEOPLE | _MARKS | _WISHES | ZONES | GANGS
PREFIXES = (NFD_PREFIX, keys.RISCV_EXTENSION)
_FEATURE = re.compile(r"[A-Za-z0-9_]{1,24}")

_GO_ARCHS = frozenset({"386", "amd64", "arm", "arm64", "loong64", "mips64le", "ppc64le", "riscv64", "s390x", "unknown"})
_GO_SYSTEMS = frozenset({"linux", "windows", "darwin", "freebsd", "macos", "unknown"})
_TRUTH = frozenset({"true", "1", "t", "false", "0", "f"})
_NUMBER = re.compile(r"[0-9]{1,15}G?", re.ASCII)
PLAIN_WORDS = frozenset({"true", "false"})

_RESOURCES = frozenset({CPU, MEMORY, PODS, EPHEMERAL_STORAGE, "storage", *GPU_RESOURCES, NETWORK_MBPS, DISK_MBPS})
_RESOURCE = re.compile(r"hugepages-[0-9]{1,6}[KMGT]i|nvidia\.com/(mig-[0-9]g\.[0-9]{1,3}gb|gpu\.shared)", re.ASCII)

KINDS = frozenset({
    "CronJob", "DaemonSet", "Deployment", "Job", "Node", "ReplicaSet", "ReplicationController", "StatefulSet",
})  # fmt: skip
VOLUME_SOURCES = frozenset({
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "fc", "flexVolume", "flocker",
    "gcePersistentDisk", "glusterfs", "hostPath", "iscsi", "local", "nfs", "photonPersistentDisk", "portworxVolume",
    "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume",
})  # fmt: skip
ADDRESSES = frozenset({"0.0.0.0", "127.0.0.1", "::", "::1"})  # noqa: S104 - compared, not bound
VENDORS = frozenset({"nvidia", "amd", "intel"})
ZONE_STEMS = frozenset({"", "node", "node-", "numa", "numa-", "numa-node-", "zone", "zone-"})
PRIORITY_CLASSES = frozenset({"system-cluster-critical", "system-node-critical"})
# Words that parameters of built-in plugins accept.
PARAMETER_WORDS = frozenset({
    "all", "allow", "asking", "best", "capability", "capacity", "change", "cores", "cosine", "count", "cpu",
    "difference", "fp32", "gpu", "ignore", "lattice", "log", "mean", "measured", "mix", "model", "native-first",
    "pack", "paper", "plain", "prefer", "product", "qemu-first", "ratio", "refuse", "requested", "require", "share",
    "spread", "std", "upstream", "variance", "warn", "whole-cpus",
})  # fmt: skip


def is_known_key(key: str) -> bool:
    """Return whether a label, annotation or taint key is generic, so that it identifies no cluster."""
    return key in _KEYS or any(
        key.startswith(prefix) and _FEATURE.fullmatch(key.removeprefix(prefix)) for prefix in PREFIXES
    )


def has_meaning(key: str) -> bool:
    """Return whether the engine interprets values of this key."""
    return key in _MEANT


def is_known_value(key: str, value: str) -> bool:
    """Return whether the value of a known key reveals nothing about the owner of the cluster."""
    if key in _MODELS:
        return True
    if key in _ISAS:
        return is_isa(value)
    if key in _NUMBERS:
        return _NUMBER.fullmatch(value) is not None
    if key in _TRUTHS:
        return value.lower() in _TRUTH
    return value in (_GO_ARCHS if key in _ARCHS else _GO_SYSTEMS if key in _SYSTEMS else ())


def is_known_resource(resource: str) -> bool:
    """Return whether a resource name is generic, so that it identifies no cluster."""
    return resource in _RESOURCES or _RESOURCE.fullmatch(resource) is not None


@lru_cache(maxsize=4096)
def is_isa(text: str) -> bool:
    """Return whether hetsched can parse this text as the instruction set label of a node or a pod."""
    for source in ("node-label", "pod-label"):
        try:
            isa.parse(text.strip(), source=source)
        except InputError:
            continue
        return True
    return False
