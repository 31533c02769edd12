"""Labels, annotations and API groups that hetsched reads or writes.

The keys of pod demands are defined in `contracts.objects.wishes`, because the engine names those fields in its results.

Source: the public contract; gocrane/api well_known_annotations; scheduler-plugins coscheduling.
"""

from __future__ import annotations

from typing import Final

from hetsched.contracts.objects import wishes
from hetsched.contracts.objects.submitted import WORKLOAD_LABEL

GROUP = "hetsched.io/v1alpha1"

ISA, ARCH, QEMU, KUBERNETES_ARCH = wishes.ISA, wishes.ARCH, wishes.QEMU, wishes.KUBERNETES_ARCH
EMULATED_ISA, CROSS_ISA = wishes.EMULATED_ISA, wishes.CROSS_ISA
IMAGE_PLATFORMS = wishes.IMAGE_PLATFORMS

GPU_NUMBER, GPU_MEMORY, GPU_CORE = wishes.GPU_NUMBER, wishes.GPU_MEMORY, wishes.GPU_CORE
GPU_MODEL, GPU_MILLI = wishes.GPU_MODEL, wishes.GPU_MILLI
GPU_MODEL_MATCH = "hetsched.io/gpu-model-match"

AWARENESS, CPU_POLICY = wishes.AWARENESS, wishes.CPU_POLICY
TOPOLOGY_RESULT = "topology.crane.io/topology-result"
EXCLUDE_RESERVED_CPUS = "topology.crane.io/exclude-reserved-cpus"  # crane's key; without effect in hetsched

LOAD_PROFILE = "hetsched.io/load-profile"
EXPECTED_USAGE = wishes.EXPECTED_USAGE
EXPECTED_WATTS = wishes.EXPECTED_WATTS
POLICY = "hetsched.io/policy"
ALLOCATION = "hetsched.io/allocation"
SCHEDULER = "hetsched"

GANG_NAME = wishes.GANG_NAME
GANG_MIN_AVAILABLE: Final = wishes.GANG_MIN_AVAILABLE
POD_GROUP = "scheduling.x-k8s.io/pod-group"
REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY = wishes.REQUIRED_TOPOLOGY, wishes.PREFERRED_TOPOLOGY
UNCONSTRAINED_TOPOLOGY = wishes.UNCONSTRAINED_TOPOLOGY

POOL = "hetsched.io/pool"

# Additional keys that discovery writes: the ISA level or profile, the features that the node lacks, the mark of a lower
# bound, one label per RISC-V extension, and, if the facts are stale, the time of their last confirmation.
ISA_LEVEL = "hetsched.io/isa-level"
ISA_ABSENT = "hetsched.io/isa-absent"
ISA_BOUND, LOWER = "hetsched.io/isa-bound", "lower"
RISCV_EXTENSION = "hetsched.io/riscv."
FACTS_STALE = "hetsched.io/facts-stale-since"
MANAGED_BY = "app.kubernetes.io/managed-by"
DISCOVERY = "hetsched-discovery"

# Keys of cluster-autoscaler: whether it may evict a pod, and which of the pod's local volumes may be lost.
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SAFE_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"

DEMO_DURATION = "hetsched.io/demo-duration-seconds"

# Written only by an export, for facts that a plain object cannot express; reading these keys makes an export lossless.
EXPORT_PROBLEMS = "hetsched.io/export-problems"
EXPORT_SCORING = "hetsched.io/export-scoring-request"
EXPORT_CONTAINERS = "hetsched.io/export-containers"
EXPORT_CLAIMS = "hetsched.io/export-claim-templates"
EXPORT_STAYS = "hetsched.io/export-stays"
EXPORT_BLOCKED = "hetsched.io/export-blocked"
EXPORT_UNSUPPORTED = "hetsched.io/export-unsupported"
EXPORT_IMAGES = "hetsched.io/export-image-sizes"

# Prefixes of keys that users may set on pods, Namespaces, PodGroups, ElasticQuotas and NodeResourceTopologies; used for
# spelling hints.
OWN_PREFIXES = ("hetsched.io/", "topology.crane.io/", "oks/", "pod-group.scheduling.sigs.k8s.io/")
ANNOTATIONS = frozenset({
    ISA, EMULATED_ISA, CROSS_ISA, IMAGE_PLATFORMS, *GPU_NUMBER, GPU_MEMORY, GPU_CORE,
    GPU_MODEL, GPU_MILLI, GPU_MODEL_MATCH, *AWARENESS, *CPU_POLICY, TOPOLOGY_RESULT,
    EXCLUDE_RESERVED_CPUS, LOAD_PROFILE, EXPECTED_USAGE, EXPECTED_WATTS, POLICY,
    ALLOCATION, DEMO_DURATION, EXPORT_PROBLEMS, EXPORT_SCORING, EXPORT_CONTAINERS,
    EXPORT_CLAIMS, EXPORT_STAYS, EXPORT_BLOCKED, EXPORT_UNSUPPORTED, EXPORT_IMAGES,
    REQUIRED_TOPOLOGY[1], PREFERRED_TOPOLOGY[1], UNCONSTRAINED_TOPOLOGY[1],
})  # fmt: skip
LABELS = frozenset({ISA, POOL, GANG_NAME, GANG_MIN_AVAILABLE, WORKLOAD_LABEL})
ATTRIBUTES = frozenset({
    "cpuManagerPolicy", "topologyManagerPolicy", "topologyManagerScope", "reservedSystemCPUs",
    "cpuManagerPolicyOptions", "topologyManagerPolicyOptions", "memoryManagerPolicy", "powerState",
    "powerHeadroomWatts", "offline_capacity", "hetsched.io/cpus", "hetsched.io/siblings", "hetsched.io/sockets",
    "hetsched.io/caches", "hetsched.io/kubelet-grants", "hetsched.io/static-memory", "go.crane.io/reserved-system-cpus",
})  # fmt: skip
