"""Seeded stream of workloads for the demo fleet.

A workload depends only on the seed and its sequence number, so the stream can be resumed anywhere. Most workloads fit;
about one in thirty never fits, and about one in thirty is misconfigured, so that every verdict occurs. Some workloads
are gangs, use whole CPUs of a zone exclusively, share GPUs, or have a priority that lets them preempt others. The
annotation `hetsched.io/demo-duration-seconds` of each object states how long the workload runs.
Invariant: equal (seed, sequence) give equal manifests; names are unique in a stream.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hetsched.adapters.objects import keys

Plain = dict[str, Any]
Kind = Callable[[random.Random, str], Plain]

SHORTEST_SECONDS, LONGEST_SECONDS = 30, 300
_TRAINING = {"key": "hetsched.io/dedicated", "operator": "Equal", "value": "training", "effect": "NoSchedule"}


def demo_workload(seed: int, sequence: int) -> list[Plain]:
    """Return the manifests of one workload of the stream."""
    draw = random.Random(f"stream {seed} {sequence}")
    kind = draw.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
    manifest = kind(draw, f"{kind.__name__.strip('_').replace('_', '-')}-{sequence}")
    seconds = draw.randint(SHORTEST_SECONDS, LONGEST_SECONDS)
    manifest["metadata"].setdefault("annotations", {})[keys.DEMO_DURATION] = str(seconds)
    return [manifest]


# -- the three objects ----------------------------------------------------------------------------------------------


def _spec(cpu: str, memory: str, *, limits: dict[str, str] | None = None, **more: Any) -> Plain:
    resources: Plain = {"requests": {"cpu": cpu, "memory": memory}}
    if limits:
        resources["limits"] = limits
    return {"containers": [{"name": "main", "image": "demo:1", "resources": resources}], **more}


def _meta(name: str, namespace: str, labels: dict[str, str] | None, annotations: dict[str, str] | None) -> Plain:
    meta: Plain = {"name": name, "namespace": namespace, "labels": {"app": name, **(labels or {})}}
    if annotations:
        meta["annotations"] = dict(annotations)
    return meta


def _pod(
    name: str, namespace: str, spec: Plain, labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Plain:  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": _meta(name, namespace, labels, annotations), "spec": spec,
    }  # fmt: skip


def _job(
    name: str, namespace: str, pods: int, spec: Plain, annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
) -> Plain:  # fmt: skip
    template = {"metadata": _meta(name, namespace, labels, annotations), "spec": {**spec, "restartPolicy": "Never"}}
    del template["metadata"]["name"], template["metadata"]["namespace"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"parallelism": pods, "completions": pods, "template": template},
    }


def _deployment(name: str, namespace: str, pods: int, spec: Plain, annotations: dict[str, str] | None = None) -> Plain:
    template = {"metadata": _meta(name, namespace, None, annotations), "spec": spec}
    del template["metadata"]["name"], template["metadata"]["namespace"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": pods, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


# -- the kinds of work: each function's name is the workload's name ----------------------------------------------------


def _web_api(draw: random.Random, name: str) -> Plain:
    rule = {
        "maxSkew": 2,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": name}},
    }
    spec = _spec(draw.choice(("500m", "1", "2")), draw.choice(("512Mi", "1Gi", "2Gi")))
    spec |= {"topologySpreadConstraints": [rule], "priority": 1000}
    return _deployment(name, "web", draw.randint(3, 8), spec)


def _arm_cache(draw: random.Random, name: str) -> Plain:
    spec = _spec(draw.choice(("2", "4")), draw.choice(("4Gi", "8Gi")), nodeSelector={keys.KUBERNETES_ARCH: "arm64"})
    return _deployment(name, "web", draw.randint(2, 5), spec)


def _ci_build(draw: random.Random, name: str) -> Plain:
    spec = _spec(draw.choice(("2", "4", "8")), draw.choice(("4Gi", "8Gi")), priority=-100)
    return _job(name, "ci", draw.randint(1, 4), spec, {keys.ISA: "x86-64-v2"})


def _ci_riscv(draw: random.Random, name: str) -> Plain:
    label = draw.choice(("RV64GC", "RV64GC_Zba_Zbb", "rv64imafdc"))
    return _pod(name, "ci", _spec(draw.choice(("1", "2")), "2Gi"), {keys.ARCH: label})


def _riscv_vector(draw: random.Random, name: str) -> Plain:
    spec = _spec(draw.choice(("2", "4", "6")), draw.choice(("2Gi", "4Gi")))
    return _job(name, "ci", draw.randint(1, 3), spec, {keys.ISA: draw.choice(("rva22u64_v", "rv64gcv_zba_zbb_zbs"))})


def _riscv_emulated(draw: random.Random, name: str) -> Plain:
    """Build a pod that runs on a RISC-V machine, or on a machine that emulates RISC-V."""
    annotations = {keys.ISA: "rv64gc", keys.EMULATED_ISA: "rv64gc_zba_zbb"}
    return _pod(name, "ci", _spec(draw.choice(("2", "4")), "4Gi"), annotations=annotations)


def _simd_render(draw: random.Random, name: str) -> Plain:
    need = draw.choice(("x86-64-v3", "x86-64-v3", "x86-64-v4", "x86-64-v4+avx512_vnni"))
    return _job(name, "hpc", draw.randint(1, 4), _spec(draw.choice(("8", "16")), "16Gi"), {keys.ISA: need})


def _hpc_solver(draw: random.Random, name: str) -> Plain:
    need = draw.choice(("arm64", "armv8.2-a", "arm64+asimddp"))
    return _job(name, "hpc", draw.randint(1, 2), _spec(draw.choice(("16", "24", "32")), "32Gi"), {keys.ISA: need})


def _pinned_solver(draw: random.Random, name: str) -> Plain:
    """Build a pod that uses whole CPUs exclusively, in one NUMA zone of a machine with several zones."""
    cpu, memory = draw.choice(("8", "16", "24")), "32Gi"
    # Requests equal limits, because kubelets give exclusive CPUs to Guaranteed pods only.
    limits = {"cpu": cpu, "memory": memory}
    spec = _spec(cpu, memory, limits=limits, nodeSelector={keys.POOL: "arm-hpc"}, priority=500)
    return _pod(name, "hpc", spec, annotations={keys.AWARENESS[0]: "true", keys.CPU_POLICY[0]: "exclusive"})


def _edge_sensor(draw: random.Random, name: str) -> Plain:
    pools = [{"key": keys.POOL, "operator": "In", "values": ["riscv-edge", "arm-edge"]}]
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": pools}]}
        }
    }
    return _pod(name, "edge", _spec(draw.choice(("250m", "500m")), "256Mi", affinity=affinity))


def _inference(draw: random.Random, name: str) -> Plain:
    annotations = {keys.GPU_MILLI: str(draw.choice((100, 200, 250, 400, 500))), keys.GPU_MODEL: "T4|L4"}
    return _deployment(name, "ml", draw.randint(1, 3), _spec(draw.choice(("2", "4")), "8Gi"), annotations)


def _notebook(draw: random.Random, name: str) -> Plain:
    annotations = {keys.GPU_MILLI: str(draw.choice((300, 500))), keys.GPU_MEMORY: str(draw.choice((4096, 6000)))}
    return _pod(name, "ml", _spec("4", "16Gi"), annotations=annotations)


def _training(draw: random.Random, name: str) -> Plain:
    cards = draw.choice((1, 1, 2, 4))
    spec = _spec(str(8 * cards), f"{64 * cards}Gi", limits={"nvidia.com/gpu": str(cards)}, tolerations=[_TRAINING])
    return _job(name, "ml", 1, spec, {keys.GPU_MODEL: draw.choice(("A100", "A100|H100", "H100"))})


def _gang_training(draw: random.Random, name: str) -> Plain:
    """Build a gang: a job whose workers start together or not at all."""
    workers, cards = draw.choice(((2, 1), (3, 1), (4, 1), (2, 2)))
    gang = {keys.GANG_NAME: name, keys.GANG_MIN_AVAILABLE: str(workers)}
    spec = _spec(str(6 * cards), f"{24 * cards}Gi", limits={"nvidia.com/gpu": str(cards)}, tolerations=[_TRAINING])
    return _job(name, "ml", workers, spec, {keys.GPU_MODEL: draw.choice(("L4|T4", "A100|H100"))}, gang)


def _urgent_serving(draw: random.Random, name: str) -> Plain:
    """Build a pod that requests H100 GPUs and whose priority is high enough to preempt training pods."""
    limits = {"nvidia.com/gpu": draw.choice(("2", "4"))}
    spec = _spec("16", "128Gi", limits=limits, tolerations=[_TRAINING], priority=5000)
    return _pod(name, "ml", spec, annotations={keys.GPU_MODEL: "H100"})


def _finetune_amd(draw: random.Random, name: str) -> Plain:
    cards = draw.choice((1, 2))
    return _job(name, "ml", 1, _spec(str(12 * cards), f"{128 * cards}Gi", limits={"amd.com/gpu": str(cards)}))


def _too_large(draw: random.Random, name: str) -> Plain:
    """Build a pod that fits no node of the fleet, not even an empty one."""
    spec, annotations = draw.choice(
        (
            (_spec("4", "16Gi"), {keys.GPU_NUMBER[0]: "1", keys.GPU_MEMORY: "262144"}),
            (_spec("256", "64Gi"), {}),
            (_spec("2", "2Gi"), {keys.ISA: "rva23u64"}),
            (_spec("8", "32Gi"), {keys.GPU_NUMBER[0]: "16"}),
        )
    )
    return _pod(name, "hpc", spec, annotations=annotations)


def _invalid_pod(draw: random.Random, name: str) -> Plain:
    """Build a pod with an invalid demand."""
    annotations = draw.choice(
        (
            {keys.GPU_MILLI: "1500"},
            {keys.ISA: "rv64gqq"},
            {keys.GPU_NUMBER[0]: "2", keys.GPU_MILLI: "500"},
            {keys.CPU_POLICY[1]: "sometimes"},
        )
    )
    return _pod(name, "ci", _spec("1", "1Gi"), annotations=annotations)


KINDS: tuple[tuple[Kind, int], ...] = (
    (_web_api, 16), (_arm_cache, 8), (_ci_build, 14), (_ci_riscv, 10), (_riscv_vector, 7), (_riscv_emulated, 5),
    (_simd_render, 9), (_hpc_solver, 6), (_pinned_solver, 5), (_edge_sensor, 4), (_inference, 10), (_notebook, 5),
    (_training, 7), (_gang_training, 4), (_urgent_serving, 3), (_finetune_amd, 3), (_too_large, 4), (_invalid_pod, 4),
)  # fmt: skip
