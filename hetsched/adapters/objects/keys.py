"""The labels, annotations and API groups that are read and written; each spelled in one place.

What a pod wishes is spelled in `contracts.wishes`, because the engine names those fields again.

Source: the public contract; gocrane/api well_known_annotations; scheduler-plugins coscheduling.
"""

from __future__ import annotations

from hetsched.contracts import wishes

GROUP = "hetsched.io/v1alpha1"

ISA, ARCH, QEMU, KUBERNETES_ARCH = wishes.ISA, wishes.ARCH, wishes.QEMU, wishes.KUBERNETES_ARCH
EMULATED_ISA, CROSS_ISA = wishes.EMULATED_ISA, wishes.CROSS_ISA
IMAGE_PLATFORMS = wishes.IMAGE_PLATFORMS

GPU_NUMBER, GPU_MEMORY, GPU_CORE = wishes.GPU_NUMBER, wishes.GPU_MEMORY, wishes.GPU_CORE
GPU_MODEL, GPU_MILLI = wishes.GPU_MODEL, wishes.GPU_MILLI
GPU_MODEL_MATCH = "hetsched.io/gpu-model-match"

AWARENESS, CPU_POLICY = wishes.AWARENESS, wishes.CPU_POLICY
TOPOLOGY_RESULT = "topology.crane.io/topology-result"

LOAD_PROFILE = "hetsched.io/load-profile"
EXPECTED_USAGE = wishes.EXPECTED_USAGE
EXPECTED_WATTS = wishes.EXPECTED_WATTS
POLICY = "hetsched.io/policy"
ALLOCATION = "hetsched.io/allocation"
SCHEDULER = "hetsched"

GANG_NAME, GANG_MIN_AVAILABLE = wishes.GANG_NAME, wishes.GANG_MIN_AVAILABLE
POD_GROUP = "scheduling.x-k8s.io/pod-group"

POOL = "hetsched.io/pool"

# What discovery says of a node beside the keys above: its level or profile, its RISC-V extensions one by one, that its
# ISA is a lower bound, and since when nobody confirmed any of it.
ISA_LEVEL = "hetsched.io/isa-level"
ISA_BOUND, LOWER = "hetsched.io/isa-bound", "lower"
RISCV_EXTENSION = "hetsched.io/riscv."
FACTS_STALE = "hetsched.io/facts-stale-since"
MANAGED_BY = "app.kubernetes.io/managed-by"
DISCOVERY = "hetsched-discovery"

# cluster-autoscaler's: whether a pod may be evicted to tidy up, and which of its local volumes hold nothing of worth.
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SAFE_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"

DEMO_DURATION = "hetsched.io/demo-duration-seconds"

# Written by an export only, for what a plain object cannot say; read back so that an export loses nothing.
EXPORT_PROBLEMS = "hetsched.io/export-problems"
EXPORT_SCORING = "hetsched.io/export-scoring-request"
EXPORT_CONTAINERS = "hetsched.io/export-containers"
EXPORT_CLAIMS = "hetsched.io/export-claim-templates"
EXPORT_STAYS = "hetsched.io/export-stays"
EXPORT_BLOCKED = "hetsched.io/export-blocked"
EXPORT_UNSUPPORTED = "hetsched.io/export-unsupported"
