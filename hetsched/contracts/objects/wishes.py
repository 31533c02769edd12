"""Labels and annotations that state the requirements of a pod.

Source: the public contract section 1, "What a pod may ask for".
"""

from __future__ import annotations

from typing import Final

ISA = "hetsched.io/isa"
ARCH = "ARCH"
QEMU = "QEMU"
KUBERNETES_ARCH = "kubernetes.io/arch"
EMULATED_ISA = "hetsched.io/emulated-isa"
CROSS_ISA = "hetsched.io/cross-isa"
IMAGE_PLATFORMS = "hetsched.io/image-platforms"

GPU_NUMBER = ("oks/gpu-number", "oks/gpunumber")
GPU_MEMORY = "oks/gpu-memory"
GPU_CORE = "oks/gpu-core"
GPU_MODEL = "hetsched.io/gpu-model"
GPU_MILLI = "hetsched.io/gpu-milli"

AWARENESS = ("topology.crane.io/topology-awareness", "hetsched.io/topology-awareness")
CPU_POLICY = ("topology.crane.io/cpu-policy", "hetsched.io/cpu-policy")

EXPECTED_USAGE = "hetsched.io/expected-usage"
EXPECTED_WATTS = "hetsched.io/expected-watts"

GANG_NAME = "pod-group.scheduling.sigs.k8s.io/name"
GANG_MIN_AVAILABLE: Final = "pod-group.scheduling.sigs.k8s.io/min-available"
# Field with the minimum number of members of a PodGroup, in scheduler-plugins and in Kubernetes itself.
GROUP_MIN_MEMBER: Final = "spec.minMember"
GROUP_MIN_COUNT: Final = "spec.schedulingPolicy.gang.minCount"
# Levels of the topology domains of a gang: Kueue's keys, and the same keys of hetsched.
REQUIRED_TOPOLOGY = ("kueue.x-k8s.io/podset-required-topology", "hetsched.io/podset-required-topology")
PREFERRED_TOPOLOGY = ("kueue.x-k8s.io/podset-preferred-topology", "hetsched.io/podset-preferred-topology")
UNCONSTRAINED_TOPOLOGY = ("kueue.x-k8s.io/podset-unconstrained-topology", "hetsched.io/podset-unconstrained-topology")
GROUP_TOPOLOGY: Final = "spec.schedulingConstraints.topology"
