"""The most requested shapes of a cluster: those of its latest pods, or worked examples if it has no pods yet.

The shapes are those of the latest pods of this scheduler with a valid and satisfiable request. Requests are reduced to
the fields that decide whether a copy fits (`simulation.headroom.alone`) and counted by workload, so that one large
workload does not displace the others. The result contains the few most frequent shapes. Their order depends only on the
shapes, so that rows of a table keep their positions.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from hetsched.adapters.objects import keys
from hetsched.adapters.objects.documents import load_documents
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.documents import encode
from hetsched.contracts.objects.workload import PodSpec, Shape, is_ours
from hetsched.contracts.units import CPU, MEMORY
from hetsched.engine.simulation.headroom import alone
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod

MOST_SHAPES = 6
LATEST_PODS = 1000
# The copies are counted in a namespace that no pod uses, so that no quota limits the count.
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


class CommonShape(msgspec.Struct, frozen=True):
    """A requested shape, as a pod with that shape, and the number of workloads that requested it.

    `like` is the latest pod that requested the shape; it is empty for a worked example.
    """

    pod: PodSpec
    workloads: int
    like: str = ""


def common_shapes(cluster_id: int) -> list[CommonShape]:
    """Return the most requested shapes of a cluster, or worked examples, for its headroom table."""
    return _of_latest(cluster_id) or _examples()


def _of_latest(cluster_id: int) -> list[CommonShape]:
    rows = Pod.objects.filter(cluster_id=cluster_id).exclude(state__in=_WITHOUT).order_by("-id")
    latest = list(rows.values_list("spec", "workload_id")[:LATEST_PODS])
    ours = [(spec, workload) for spec, workload in latest if is_ours(spec.scheduler_name)] or latest
    requesters: dict[Shape, set[str]] = defaultdict(set)
    first: dict[Shape, PodSpec] = {}
    for spec, workload in ours:
        if not spec.problems:
            shape = _reduce(spec.shape)
            requesters[shape].add(workload or spec.owner)
            first.setdefault(shape, spec)
    most = sorted(requesters, key=lambda shape: (-len(requesters[shape]), encode(shape)))[:MOST_SHAPES]
    return [
        CommonShape(_pod_of(shape, first[shape].labels), len(requesters[shape]), first[shape].key)
        for shape in sorted(most, key=_sort_key)
    ]


def _examples() -> list[CommonShape]:
    content = read_content(load_documents(_EXAMPLES.encode(), name="examples"), workload=True)
    return [CommonShape(_pod_of(_reduce(pod.shape), {}), 0) for pod in content.pending]


def _reduce(shape: Shape) -> Shape:
    """Reduce a shape to the fields that decide whether a copy fits.

    Expected usage and the names of images only affect the choice of node.
    """
    return msgspec.structs.replace(alone(shape), expected_usage=(), load_profile="", images=())


def _pod_of(shape: Shape, labels: dict[str, str]) -> PodSpec:
    """Return a pod of this shape; it keeps the labels that define the shape."""
    kept = {name: value for name, value in labels.items() if name in (keys.ISA, keys.ARCH, keys.QEMU)}
    guaranteed = shape.guaranteed or any(container.memory for container in shape.containers)
    return PodSpec(_NAMESPACE, "one-more", shape, labels=kept, qos="Guaranteed" if guaranteed else "BestEffort")


def _sort_key(shape: Shape) -> tuple[int, int, int, bytes]:
    """Return the sort key: requested GPUs, CPU and memory."""
    cards = shape.gpu.count * shape.gpu.milli if shape.gpu else 0
    return cards, shape.request(CPU), shape.request(MEMORY), encode(shape)
