"""Machines and applications of the balance comparison: CPU, memory, network and disk, requested and measured.

Half of the nodes are small, half are twice as large; applications are of four kinds, each heavy on one resource. Their
use is known exactly, and differs from their requests. An order is a Fisher-Yates shuffle from the last index by the
generator of `lab.lcg`.
Source: MBCGT publishes the counts (4 nodes, 12 pods of 4 kinds, 3 groups of 5 orders); sizes, demands and seeds are a
reconstruction, searched so that the gains have the published magnitude.
"""

from __future__ import annotations

from hetsched.contracts.objects.node_report import NodeReport, Usage
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.contracts.units import CPU, DISK_MBPS, MEMORY, NETWORK_MBPS, PODS

from .lcg import Lcg

RESOURCES = (CPU, MEMORY, NETWORK_MBPS, DISK_MBPS)
_GIB = 2**30
_SMALL = (4000, 8 * _GIB, 100, 100)
_LARGE = (8000, 16 * _GIB, 200, 200)
# Requested (CPU, memory) and used (CPU, memory, network, disk).
_KINDS = {
    "cpu": ((2000, _GIB), (3500, _GIB // 2, 5, 5)),
    "mem": ((500, 4 * _GIB), (300, 3 * _GIB, 5, 5)),
    "net": ((500, _GIB), (300, _GIB // 2, 75, 5)),
    "io": ((500, _GIB), (300, _GIB // 2, 5, 75)),
}


def nodes(count: int) -> list[NodeReport]:
    """Return empty measured nodes: two small ones, two large ones, and so on."""
    return [_node(f"node{number:03d}", _LARGE if (number - 1) % 4 >= 2 else _SMALL) for number in range(1, count + 1)]


def _node(name: str, size: tuple[int, ...]) -> NodeReport:
    room = dict(zip(RESOURCES, size, strict=True)) | {PODS: 110}
    return NodeReport(name=name, allocatable=room, usage=Usage(dict.fromkeys(RESOURCES, 0)))


def pods(copies: int, seed: int) -> list[PodSpec]:
    """Return `copies` applications of each kind in the seed's order."""
    made = [PodSpec("lab", f"{kind}{number}", shape) for kind, shape in _SHAPES.items() for number in range(copies)]
    Lcg(seed).shuffle(made)
    return made


def _shape(requested: tuple[int, ...], used: tuple[int, ...]) -> Shape:
    cpu, memory = requested
    return Shape(
        requests=((CPU, cpu), (MEMORY, memory), (PODS, 1)),
        nonzero_cpu_millis=cpu,
        nonzero_memory_bytes=memory,
        expected_usage=tuple(sorted(zip(RESOURCES, used, strict=True))),
    )


_SHAPES = {kind: _shape(*amounts) for kind, amounts in _KINDS.items()}
