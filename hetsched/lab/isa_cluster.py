"""Cluster of the ISAMatch experiment: five nodes with five instruction sets, and a hundred tasks.

There is one x86 node that emulates RISC-V, one Arm node, and three RISC-V nodes of which only two run RV64IMFD. Every
tenth task is a compute job (400-800m, 256-768Mi); the others are services (50-200m, 64-256Mi). Sizes are drawn with
`hetsched.lab.lcg`.
Source: the description of the cluster by Jiang et al., Computer Systems & Applications 2022 31(9); all other values are
our own.
"""

from __future__ import annotations

from typing import NamedTuple

from hetsched.contracts.objects.node_report import IsaReport, NodeReport
from hetsched.contracts.objects.workload import IsaDemand, PodSpec, Shape
from hetsched.contracts.units import MIB

from .lcg import Lcg

TASKS = 100
_ARCH = "kubernetes.io/arch"
_NODES = (
    ("amd64", "X86"),
    ("arm64", "ARM64"),
    ("riscv64", "RV64IMFD"),
    ("riscv64", "RV64IM"),
    ("riscv64", "RV64IMFDV"),
)


class IsaPodGroup(NamedTuple):
    """Group of pods that need `isa`, on all nodes or only on RISC-V nodes; `right` lists the nodes that can run it."""

    title: str
    short: str
    isa: str
    limited: bool
    right: frozenset[str]
    published: float


_FULL = frozenset({"node3", "node5"})
GROUPS = (
    IsaPodGroup("base set", "base", "RV64I", False, _FULL | {"node4"}, 62.0),
    IsaPodGroup("extensions, no label", "extended", "RV64IMFD", False, _FULL, 41.0),
    IsaPodGroup("extensions, labelled RISC-V", "RISC-V", "RV64IMFD", True, _FULL, 67.0),
)


def cluster() -> list[NodeReport]:
    """Return the five nodes; node1 emulates RV64IMFDV."""
    return [
        node(f"node{number}", isa, arch, emulated=("RV64IMFDV",) if isa == "X86" else ())
        for number, (arch, isa) in enumerate(_NODES, 1)
    ]


def tasks(group: IsaPodGroup, seed: int) -> list[PodSpec]:
    """Return the group's 100 pods: every tenth is a compute job, the others are services."""
    draw = Lcg(seed)
    pods = []
    for number in range(TASKS):
        if number % 10 == 9:
            size = 400 + 50 * draw.below(9), 256 + 64 * draw.below(9)
        else:
            size = 50 + 10 * draw.below(16), 64 + 16 * draw.below(13)
        pods.append(pod(f"task-{number:02d}", group.isa, *size, limited=group.limited))
    return pods


def node(name: str, isa: str, arch: str, *, emulated: tuple[str, ...] = ()) -> NodeReport:
    """Return a node with 16 CPUs and 32 GiB."""
    return NodeReport(
        name=name,
        labels={_ARCH: arch},
        allocatable={"cpu": 16_000, "memory": 32_768 * MIB, "pods": 110},
        isa=IsaReport(native=isa, emulated=emulated, cross=emulated, source="label ARCH"),
    )


def pod(name: str, isa: str, cpu: int, memory_mib: int, *, limited: bool = False, on: str = "") -> PodSpec:
    """Return a pod; `limited` requires a RISC-V node, and `on` is the node of a running pod.

    An empty `isa` means that the pod does not require an instruction set.
    """
    shape = Shape(
        requests=(("cpu", cpu), ("memory", memory_mib * MIB), ("pods", 1)),
        nonzero_cpu_millis=cpu,
        nonzero_memory_bytes=memory_mib * MIB,
        node_selector=((_ARCH, "riscv64"),) if limited else (),
        isa=IsaDemand(isa, source="label ARCH") if isa else None,
    )
    return PodSpec(namespace="lab", name=name, shape=shape, node_name=on)
