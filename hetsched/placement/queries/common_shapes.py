"""What people of a cluster ask for most: the shapes of its latest pods, or worked examples where there are none yet.

Rule: of the latest pods that this scheduler places, those whose request is right and can be met somewhere; reduced to
what decides whether a copy fits (`alone`), counted by workloads, so that one large workload does not crowd the rest
out. The most frequent few, in an order that depends on what they ask alone, so that a table of them keeps its places.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from hetsched.adapters.objects import keys
from hetsched.adapters.objects.documents import load_documents
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.units import CPU, MEMORY
from hetsched.contracts.workload import PodSpec, Shape, is_ours
from hetsched.engine.simulation.headroom import alone
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod

MOST_SHAPES = 6
LATEST_PODS = 1000
# A namespace that nobody has: what is counted is room, not quota.
_NAMESPACE = "headroom"
_WITHOUT = (State.MISCONFIGURED.value, State.NEVER_FITS.value)
_EXAMPLES = """
{kind: Pod, apiVersion: v1, metadata: {name: one-cpu}, spec: {containers: [
  {name: main, image: example/image, resources: {requests: {cpu: "1", memory: 2Gi}}}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: vectors, annotations: {hetsched.io/isa: rva22u64_v}}, spec: {containers: [
  {name: main, image: example/image, resources: {requests: {cpu: "4", memory: 8Gi}}}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: level, annotations: {hetsched.io/isa: x86-64-v3}}, spec: {containers: [
  {name: main, image: example/image, resources: {requests: {cpu: "4", memory: 8Gi}}}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: quarter, annotations: {hetsched.io/gpu-milli: "250",
  oks/gpu-memory: "4096"}}, spec: {containers: [
  {name: main, image: example/image, resources: {requests: {cpu: "2", memory: 8Gi}}}]}}
"""


class Common(msgspec.Struct, frozen=True):
    """A shape as a pod that stands for it; `like` is the latest pod that asked for it, empty for an example."""

    pod: PodSpec
    workloads: int
    like: str = ""


def common_shapes(cluster_id: int) -> list[Common]:
    """Return the shapes that a table of headroom shows."""
    return _of_latest(cluster_id) or _examples()


def _of_latest(cluster_id: int) -> list[Common]:
    rows = Pod.objects.filter(cluster_id=cluster_id).exclude(state__in=_WITHOUT).order_by("-id")
    latest = list(rows.values_list("spec", "workload_id")[:LATEST_PODS])
    ours = [(spec, workload) for spec, workload in latest if is_ours(spec.scheduler_name)] or latest
    askers: dict[Shape, set[str]] = defaultdict(set)
    first: dict[Shape, PodSpec] = {}
    for spec, workload in ours:
        if not spec.problems:
            shape = _reduced(spec.shape)
            askers[shape].add(workload or spec.owner)
            first.setdefault(shape, spec)
    most = sorted(askers, key=lambda shape: (-len(askers[shape]), msgspec.json.encode(shape)))[:MOST_SHAPES]
    return [
        Common(_standing_for(shape, first[shape].labels), len(askers[shape]), first[shape].key)
        for shape in sorted(most, key=_place)
    ]


def _examples() -> list[Common]:
    content = read_content(load_documents(_EXAMPLES.encode(), name="examples"), workload=True)
    return [Common(_standing_for(_reduced(pod.shape), {}), 0) for pod in content.pending]


def _reduced(shape: Shape) -> Shape:
    """Return what decides whether a copy fits; what a pod is expected to use decides only where."""
    return msgspec.structs.replace(alone(shape), expected_usage=(), load_profile="")


def _standing_for(shape: Shape, labels: dict[str, str]) -> PodSpec:
    """Return a pod of this shape; of its labels it keeps those that state the shape."""
    kept = {name: value for name, value in labels.items() if name in (keys.ISA, keys.ARCH, keys.QEMU)}
    return PodSpec(_NAMESPACE, "one-more", shape, labels=kept)


def _place(shape: Shape) -> tuple[int, int, int, bytes]:
    """Order by cards, CPU and memory asked for."""
    cards = shape.gpu.count * shape.gpu.milli if shape.gpu else 0
    return cards, shape.request(CPU), shape.request(MEMORY), msgspec.json.encode(shape)
