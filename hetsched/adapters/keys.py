"""The labels, annotations and API groups that are read and written; each spelled in one place.

Source: the public contract; gocrane/api well_known_annotations; scheduler-plugins coscheduling.
"""

from __future__ import annotations

GROUP = "hetsched.io/v1alpha1"

ISA = "hetsched.io/isa"
ARCH = "ARCH"
QEMU = "QEMU"
KUBERNETES_ARCH = "kubernetes.io/arch"
EMULATED_ISA = "hetsched.io/emulated-isa"
CROSS_ISA = "hetsched.io/cross-isa"

GPU_NUMBER = ("oks/gpu-number", "oks/gpunumber")
GPU_MEMORY = "oks/gpu-memory"
GPU_CORE = "oks/gpu-core"
GPU_MODEL = "hetsched.io/gpu-model"
GPU_MODEL_MATCH = "hetsched.io/gpu-model-match"
GPU_MILLI = "hetsched.io/gpu-milli"

AWARENESS = ("topology.crane.io/topology-awareness", "hetsched.io/topology-awareness")
CPU_POLICY = ("topology.crane.io/cpu-policy", "hetsched.io/cpu-policy")
TOPOLOGY_RESULT = "topology.crane.io/topology-result"

LOAD_PROFILE = "hetsched.io/load-profile"
EXPECTED_USAGE = "hetsched.io/expected-usage"
POLICY = "hetsched.io/policy"
ALLOCATION = "hetsched.io/allocation"
SCHEDULER = "hetsched"

GANG_NAME = "pod-group.scheduling.sigs.k8s.io/name"
GANG_MIN_AVAILABLE = "pod-group.scheduling.sigs.k8s.io/min-available"
POD_GROUP = "scheduling.x-k8s.io/pod-group"

POOL = "hetsched.io/pool"
DEMO_DURATION = "hetsched.io/demo-duration-seconds"

# Written by an export only, for what a plain object cannot say; read back so that an export loses nothing.
EXPORT_PROBLEMS = "hetsched.io/export-problems"
EXPORT_SCORING = "hetsched.io/export-scoring-request"
EXPORT_CONTAINERS = "hetsched.io/export-containers"
