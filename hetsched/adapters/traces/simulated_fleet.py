"""Seeded heterogeneous fleet for demonstrations and tests.

The first start, screenshots and tests use the same simulated cluster with running pods. The fleet is a table of real
machines: RISC-V boards and servers with the ISA strings of their kernels, Arm servers and boards, x86-64 machines of
levels 2 to 4, GPUs of two vendors, and two machines with four NUMA zones. The seed affects only differences between
copies of a machine (rack, measured load) and the running pods. Everything is built as Kubernetes objects and read like
a file.
Source: lscpu and /proc/cpuinfo dumps of the named boards; GPU data sheets; `contracts/data/accelerators.json`.
Invariant: equal seeds give equal content; neither the clock nor global random state is used.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from hetsched.adapters.objects import keys
from hetsched.adapters.objects.documents import Document
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.documents import encode
from hetsched.contracts.objects.cards import facts_of
from hetsched.contracts.objects.cluster import ClusterContent

from .demo_stream import demo_workload

__all__ = ["demo_cluster", "demo_workload"]

Plain = dict[str, Any]

RACKS = ("rack-a", "rack-b", "rack-c")
NAMESPACES = {"ci": "build", "web": "serving", "ml": "research", "hpc": "research", "edge": "serving"}

_K1 = (
    "rv64imafdcv_zicbom_zicboz_zicntr_zicond_zicsr_zifencei_zihintpause_zihpm_zfh_zfhmin_zca_zcd_zba_zbb_zbc_zbs_zkt_"
    "zve32f_zve32x_zve64d_zve64f_zve64x_zvfh_zvfhmin_zvkt_sscofpmf_sstc_svinval_svnapot_svpbmt"
)
_SG2044 = (
    "rv64imafdcv_zicbom_zicboz_zicntr_zicond_zicsr_zifencei_zihintntl_zihintpause_zihpm_zawrs_zfa_zfh_zfhmin_zca_zcb_"
    "zcd_zba_zbb_zbc_zbs_zve32f_zve32x_zve64d_zve64f_zve64x_zvfh_zvfhmin_sscofpmf_sstc_svinval_svnapot_svpbmt"
)
_EPYC = "x86-64-v3+aes+sha_ni+vaes+vpclmulqdq"
_XEON = "x86-64-v4+avx512_vnni+avx512_bf16+amx_tile+amx_int8+amx_bf16"


class MachineSet(NamedTuple):
    """`copies` equal machines named `<stem>-0`…; `cards` is (GPU model, count), `taint` is (key, value, effect)."""

    stem: str
    copies: int
    product: str
    pool: str
    arch: str
    isa: str
    cpus: int
    memory_gib: int
    network_mbps: int
    cards: tuple[str, int] | None = None
    emulates: str = ""
    zones: int = 0
    taint: tuple[str, str, str] | None = None


FLEET = (
    MachineSet("vf2", 6, "StarFive-VisionFive-2", "riscv-edge", "riscv64",
            "rv64imafdc_zicntr_zicsr_zifencei_zihpm_zba_zbb", 4, 8, 1000),
    MachineSet("k1", 4, "BananaPi-F3-SpacemiT-K1", "riscv-vector", "riscv64", _K1, 8, 16, 1000),
    MachineSet("sg2042", 2, "Milk-V-Pioneer-SG2042", "riscv-server", "riscv64",
            "rv64imafdc_zicntr_zicsr_zifencei_zihpm", 64, 128, 10000),
    MachineSet("sg2044", 2, "SG2044-server", "riscv-server", "riscv64", _SG2044, 64, 128, 10000),
    MachineSet("graviton3", 4, "Graviton3", "arm-cloud", "arm64", "armv8.4-a+aes+bf16+i8mm+sha2+sve", 16, 64, 12500),
    MachineSet("altra", 3, "Ampere-Altra-Q80", "arm-server", "arm64", "armv8.2-a+aes+sha1+sha2", 80, 256, 25000),
    MachineSet("pi4", 4, "Raspberry-Pi-4B", "arm-edge", "arm64", "armv8.0-a+crc32", 4, 8, 1000,
            taint=("hetsched.io/edge", "", "PreferNoSchedule")),
    MachineSet("kunpeng", 2, "Kunpeng-920-4826", "arm-hpc", "arm64", "armv8.2-a+aes+asimddp+sha1+sha2+sha512", 128, 512,
            25000, zones=4),
    MachineSet("ivybridge", 3, "Xeon-E5-2650-v2", "x86-legacy", "amd64", "x86-64-v2+aes+avx+f16c", 16, 64, 1000),
    MachineSet("epyc", 6, "EPYC-7543P", "x86-general", "amd64", _EPYC, 32, 128, 25000,
            emulates="rv64gc_zba_zbb_zbc_zbs"),
    MachineSet("sapphire", 4, "Xeon-8480C", "x86-compute", "amd64", _XEON, 64, 256, 25000),
    MachineSet("t4", 2, "EPYC-7302P-4xT4", "gpu-inference", "amd64", _EPYC, 32, 128, 25000, cards=("T4", 4)),
    MachineSet("l4", 2, "EPYC-9354P-4xL4", "gpu-inference", "amd64", _XEON, 48, 256, 25000, cards=("L4", 4)),
    MachineSet("a100", 2, "EPYC-7713-8xA100", "gpu-training", "amd64", _EPYC, 128, 1024, 100000,
            cards=("A100-SXM4-80GB", 8)),
    MachineSet("h100", 1, "Xeon-8480C-8xH100", "gpu-training", "amd64", _XEON, 192, 2048, 200000,
            cards=("H100-SXM5-80GB", 8), taint=("hetsched.io/dedicated", "training", "NoSchedule")),
    MachineSet("mi300x", 1, "EPYC-9654-8xMI300X", "gpu-amd", "amd64", _XEON, 192, 2048, 200000, cards=("MI300X", 8)),
)  # fmt: skip
CORDONED, NOT_READY = "ivybridge-2", "vf2-5"


def demo_cluster(seed: int) -> ClusterContent:
    """Return the demo fleet: 48 nodes, with their running pods."""
    draw = random.Random(f"fleet {seed}")
    objects = [*_namespaces(), *(o for machine in FLEET for o in _machine(machine, draw))]
    documents = [Document("demo", number, plain) for number, plain in enumerate((*objects, *_running(draw)), 1)]
    return read_content(documents, workload=False)


def _namespaces() -> Iterator[Plain]:
    for name, team in NAMESPACES.items():
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": team}}}


def node_names() -> Iterator[tuple[str, MachineSet]]:
    """Yield the name of every node with its machine."""
    for machine in FLEET:
        for number in range(machine.copies):
            yield f"{machine.stem}-{number}", machine


def _machine(machine: MachineSet, draw: random.Random) -> Iterator[Plain]:
    for number in range(machine.copies):
        name = f"{machine.stem}-{number}"
        yield _node(name, machine, draw.choice(RACKS))
        if machine.cards is not None:
            yield {**_own("NodeGpu", name), "spec": {"cards": list(_cards(name, machine))}}
        if machine.zones:
            yield _topology(name, machine)
        load = draw.uniform(0.02, 0.08)
        yield {
            **_own("NodeUsage", name),
            "usage": {
                "cpu": f"{int(machine.cpus * 1000 * load)}m",
                "memory": f"{int(machine.memory_gib * 1024 * (load + 0.03))}Mi",
                "hetsched.io/network-mbps": str(int(machine.network_mbps * load / 4)),
                "hetsched.io/disk-mbps": str(int(500 * load)),
            },
        }


def _own(kind: str, name: str) -> Plain:
    return {"apiVersion": keys.GROUP, "kind": kind, "metadata": {"name": name}}


def _node(name: str, machine: MachineSet, rack: str) -> Plain:
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        keys.KUBERNETES_ARCH: machine.arch,
        "node.kubernetes.io/instance-type": machine.product,
        "topology.kubernetes.io/zone": rack,
        keys.POOL: machine.pool,
    }
    annotations = {keys.ISA: machine.isa}
    if machine.emulates:
        annotations[keys.EMULATED_ISA] = machine.emulates
    allocatable = {
        "cpu": str(machine.cpus),
        # 4 % is reserved by the kernel and the kubelet, as on a real node
        "memory": f"{machine.memory_gib * 1024 * 96 // 100}Mi",
        "ephemeral-storage": "100Gi",
        "pods": "30" if machine.cpus <= 8 else "110",
        "hetsched.io/network-mbps": str(machine.network_mbps),
        "hetsched.io/disk-mbps": "500",
    }
    if machine.cards is not None:
        model, count = machine.cards
        facts = facts_of(model)
        assert facts is not None
        labels[f"{facts.vendor}.com/gpu.present"] = "true"
        allocatable[f"{facts.vendor}.com/gpu"] = str(count)
    taints = [machine.taint] if machine.taint else []
    ready = name != NOT_READY
    if not ready:
        taints.append(("node.kubernetes.io/not-ready", "", "NoSchedule"))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {
            "unschedulable": name == CORDONED,
            "taints": [{"key": key, "value": value, "effect": effect} for key, value, effect in taints],
        },
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def _cards(name: str, machine: MachineSet) -> Iterator[Plain]:
    assert machine.cards is not None
    model, count = machine.cards
    facts = facts_of(model)
    assert facts is not None
    for index in range(count):
        stated = {
            "index": index,
            "uuid": f"GPU-{name}-{index}",
            "model": model,
            "memoryMiB": facts.shown_memory_mib,
            "cores": facts.cores,
            "fp32Tflops": facts.fp32_tflops,
            "bandwidthGBs": facts.bandwidth_gbs,
            "clockMHz": facts.boost_mhz,
        }
        yield {key: value for key, value in stated.items() if value is not None}


def _topology(name: str, machine: MachineSet) -> Plain:
    """Return the zones of a two-socket machine; zones of the same socket are near, others are far."""
    zones, size = range(machine.zones), machine.cpus // machine.zones
    memory = f"{machine.memory_gib * 1024 * 96 // 100 // machine.zones}Mi"
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [
            {"name": "cpuManagerPolicy", "value": "none"},
            {"name": "topologyManagerPolicy", "value": "none"},
        ],
        "zones": [
            {
                "name": f"node-{zone}",
                "type": "Node",
                "costs": [
                    {"name": f"node-{other}", "value": 10 if other == zone else 16 if other // 2 == zone // 2 else 32}
                    for other in zones
                ],
                "attributes": [{"name": "hetsched.io/cpus", "value": f"{zone * size}-{(zone + 1) * size - 1}"}],
                "resources": [
                    {"name": "cpu", "capacity": str(size), "allocatable": str(size)},
                    {"name": "memory", "capacity": memory, "allocatable": memory},
                ],
            }
            for zone in zones
        ],
    }


# Services whose pods run before the stream starts: (name, namespace, node stems, share of the node's CPU, GPUs,
# thousandths of each GPU). A service without node stems runs once on every node, like a DaemonSet.
_SERVICES = (
    ("node-agent", "kube-system", "", 0.0, 0, 1000),
    ("gateway", "edge", "vf2 pi4", 0.25, 0, 1000),
    ("registry-mirror", "ci", "sg2042", 0.30, 0, 1000),
    ("api", "web", "graviton3 epyc", 0.35, 0, 1000),
    ("database", "web", "altra sapphire", 0.30, 0, 1000),
    ("chat-inference", "ml", "t4 l4", 0.20, 1, 500),
    ("pretraining", "ml", "a100", 0.30, 4, 1000),
    ("climate-model", "hpc", "kunpeng", 0.40, 0, 1000),
)


def _running(draw: random.Random) -> Iterator[Plain]:
    for name, machine in node_names():
        if name in (CORDONED, NOT_READY):
            continue
        for service, namespace, stems, share, cards, milli in _SERVICES:
            if stems and machine.stem not in stems.split():
                continue
            cpu_millis = int(machine.cpus * 1000 * share * draw.uniform(0.8, 1.2)) or 100
            kind = "ReplicaSet" if stems else "DaemonSet"
            yield _service(service, namespace, name, machine, cpu_millis, cards, milli, kind)


def _service(
    service: str, namespace: str, node: str, machine: MachineSet, cpu_millis: int, cards: int, milli: int, kind: str
) -> Plain:
    memory_mib = max(128, machine.memory_gib * 1024 * cpu_millis // (machine.cpus * 1000))
    annotations: dict[str, str] = {}
    if cards and machine.cards is not None:
        facts = facts_of(machine.cards[0])
        total = (facts.shown_memory_mib if facts else 0) or 0
        held = [
            {"index": i, "uuid": f"GPU-{node}-{i}", "milli": milli, "memoryMiB": total * milli // 1000}
            for i in range(cards)
        ]
        annotations[keys.GPU_NUMBER[0]] = str(cards)
        annotations[keys.ALLOCATION] = encode({"v": 1, "gpus": held}).decode()
        if milli < 1000:
            annotations[keys.GPU_MILLI] = str(milli)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{service}-{node}", "namespace": namespace, "labels": {"app": service},
            "annotations": annotations,
            "ownerReferences": [{"kind": kind, "name": service, "controller": True}],
        },
        "spec": {
            "nodeSelector": {keys.KUBERNETES_ARCH: machine.arch},
            "nodeName": node,
            "priority": 10_000,  # above every workload of the stream, so that none preempts these pods
            "containers": [
                {"name": "main", "resources": {"requests": {"cpu": f"{cpu_millis}m", "memory": f"{memory_mib}Mi"}}}
            ],
        },
        "status": {"phase": "Running"},
    }  # fmt: skip
