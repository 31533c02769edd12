"""Seeded mixed fleet and pods for the benchmarks.

About 55 % of the nodes are x86, 25 % Arm and 20 % RISC-V, with about thirty different ISA strings. Every third x86 node
has eight GPUs of one model. Nodes have eight resources and zone, pool and disk labels; a fifth of the GPU nodes and a
tenth of the others are tainted.
Shapes request 0.25-8 CPUs; 60 % of them request an ISA, 15 % GPUs (half of these a share of one GPU), and 20 % a zone
or disk; 30 % tolerate the taints. Shapes are drawn by Zipf's law with exponent 0.8, as in production workloads.
Invariants: the same seed yields the same fleet, and a larger fleet begins with the nodes of a smaller one.
"""

from __future__ import annotations

import random

import msgspec

from hetsched.contracts.objects.node_constraints import Toleration
from hetsched.contracts.objects.node_report import GpuCard, IsaReport, NodeReport, Taint
from hetsched.contracts.objects.workload import GpuDemand, IsaDemand, PodSpec, Shape
from hetsched.contracts.units import MIB

_GIB = 1024 * MIB
ZIPF_EXPONENT = 0.8
ZONES = tuple(f"zone-{letter}" for letter in "abcdefgh")
X86 = (
    "x86-64-v2", "x86-64-v3", "x86-64-v3+aes", "x86-64-v3+sha_ni", "x86-64-v4", "x86-64-v4+avx512_vnni",
    "x86-64-v4+avx512_vnni+amx_tile", "x86-64-v4+avx512_bf16",
)  # fmt: skip
ARM = ("armv8.0-a", "armv8.1-a", "armv8.2-a", "armv8.2-a+sve", "armv8.4-a", "armv8.5-a", "armv8.5-a+sve2")
RISCV = (
    "rv64gc", "rv64imac", "rv64gc_zba_zbb", "rv64gc_zba_zbb_zbs", "rv64gcv", "rv64gcv_zba_zbb", "rv64gc_zfh",
    "rv64gcv_zvfh", "rva20u64", "rva22u64", "rva22u64_v", "rva23u64", "rv64gc_zicbom_zicboz", "rv64gch",
)  # fmt: skip
NEEDS = (
    "x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4", "arm64", "armv8.1-a", "armv8.2-a", "RV64IMAC", "RV64GC",
    "RV64GCV", "rv64gc_zba_zbb", "rva20u64", "rva22u64",
)  # fmt: skip
MODELS = (("A100-SXM4-80GB", 81920, 6912), ("H100-SXM5-80GB", 81559, 16896), ("Tesla-V100-SXM2-32GB", 32768, 5120))
_TAINT = Taint("dedicated", "batch", "NoSchedule")
_TOLERATION = Toleration("dedicated", "Equal", "batch", "NoSchedule")


def fleet(count: int, *, seed: int = 1) -> list[NodeReport]:
    """Return `count` nodes."""
    generator = random.Random(seed)
    return [_node(generator, number) for number in range(count)]


def _node(generator: random.Random, number: int) -> NodeReport:
    family = generator.random()
    isa = generator.choice(X86 if family < 0.55 else ARM if family < 0.80 else RISCV)
    with_cards = family < 0.18
    cpus = generator.choice((64, 96, 128) if with_cards else (16, 32, 64))
    model, memory_mib, cores = generator.choice(MODELS)
    cards = tuple(
        GpuCard(index=i, uuid=f"GPU-{number:05d}-{i}", model=model, vendor="nvidia", memory_mib=memory_mib, cores=cores)
        for i in range(8 if with_cards else 0)
    )
    tainted = generator.random() < (0.2 if with_cards else 0.1)
    return NodeReport(
        name=f"node-{number:05d}",
        labels={
            "topology.kubernetes.io/zone": generator.choice(ZONES),
            "pool": "gpu" if with_cards else "general",
            "disk": generator.choice(("ssd", "hdd")),
        },
        taints=(_TAINT,) if tainted else (),
        allocatable={
            "cpu": cpus * 1000,
            "memory": cpus * generator.choice((2, 4, 8)) * _GIB,
            "pods": 250,
            "ephemeral-storage": 400 * _GIB,
            "nvidia.com/gpu": len(cards),
            "amd.com/gpu": 0,
            "hetsched.io/network-mbps": generator.choice((10_000, 25_000)),
            "hetsched.io/disk-mbps": 2_000,
        },
        isa=IsaReport(native=isa, source="bench"),
        gpus=cards,
    )


def shapes(count: int, *, seed: int = 2) -> list[Shape]:
    """Return `count` different request shapes."""
    generator = random.Random(seed)
    found: dict[Shape, None] = {}
    while len(found) < count:
        found[_shape(generator)] = None
    return list(found)


def _shape(generator: random.Random) -> Shape:
    cpu_millis = generator.choice((250, 500, 1000, 2000, 4000, 8000)) + generator.randrange(0, 250, 5)
    memory = generator.choice((512, 1024, 2048, 4096, 16384)) * MIB + generator.randrange(0, 256) * MIB
    requests = {"cpu": cpu_millis, "memory": memory, "pods": 1, "ephemeral-storage": _GIB}
    if generator.random() < 0.3:
        requests["hetsched.io/network-mbps"] = generator.choice((50, 100, 200))
        requests["hetsched.io/disk-mbps"] = generator.choice((5, 10, 20))
    gpu: GpuDemand | None = None
    if generator.random() < 0.15:
        share = generator.random() < 0.5
        gpu = GpuDemand(1, generator.choice((250, 500))) if share else GpuDemand(generator.choice((1, 1, 1, 2, 4)))
    selector: dict[str, str] = {}
    placed = generator.random()
    if placed < 0.1:
        selector["topology.kubernetes.io/zone"] = generator.choice(ZONES)
    elif placed < 0.2:
        selector["disk"] = "ssd"
    need = generator.choice(NEEDS[:4] if gpu is not None else NEEDS)
    return Shape(
        requests=tuple(sorted(requests.items())),
        nonzero_cpu_millis=cpu_millis,
        nonzero_memory_bytes=memory,
        node_selector=tuple(selector.items()),
        tolerations=(_TOLERATION,) if generator.random() < 0.3 else (),
        gpu=gpu,
        isa=IsaDemand(native=need, source="bench") if generator.random() < 0.6 else None,
    )


def pods(count: int, kinds: list[Shape], *, seed: int = 3) -> list[PodSpec]:
    """Return `count` pods whose shapes follow Zipf's law over `kinds`, where the first is the most frequent."""
    generator = random.Random(seed)
    weights = [1.0 / rank**ZIPF_EXPONENT for rank in range(1, len(kinds) + 1)]
    drawn = generator.choices(kinds, weights=weights, k=count)
    return [PodSpec("bench", f"pod-{number:06d}", shape) for number, shape in enumerate(drawn)]


def distinct_pods(count: int, *, seed: int = 4) -> list[PodSpec]:
    """Return `count` pods with pairwise different requests."""
    return [PodSpec("bench", f"pod-{number:06d}", shape) for number, shape in enumerate(shapes(count, seed=seed))]


def renamed(batch: list[PodSpec], prefix: str) -> list[PodSpec]:
    """Return the same pods with other names, so that they can be placed in addition to the original pods."""
    return [msgspec.structs.replace(pod, name=f"{prefix}-{pod.name}") for pod in batch]
