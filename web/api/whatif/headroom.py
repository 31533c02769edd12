"""`metrics/headroom/`: how many more copies of common pod shapes fit now, by pool.

The engine's own filters compute the table. It is cached for some seconds, so the response contains the revision and the
time of the computation. Each shape has a manifest that a what-if accepts unchanged. `plain` is true if the fields of
the document describe the whole request. A token that is limited to namespaces does not see which owners' pods requested
a shape.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.adapters.objects.export.pods import pod_object
from hetsched.contracts.api.decision import PolicyRef
from hetsched.contracts.objects.workload import GpuDemand, IsaDemand, PodSpec, Shape
from hetsched.contracts.units import CPU, MEMORY, PODS, format_amount
from hetsched.placement.queries.headroom import PATIENCE_SECONDS, HeadroomCounts, Line, headroom

from .. import request_scope
from ..documents import Document
from ..problems import RequestRefused
from ..views import ApiView, answer

# Resources that have a field in `HeadroomShape`; the manifest of a shape also contains all other resources.
_SHOWN_RESOURCES = {CPU, MEMORY, PODS, "nvidia.com/gpu", "amd.com/gpu"}


class HeadroomPool(Document, frozen=True):
    """A column of the table: the nodes of one ISA family and pool. `selector` contains the labels that select these
    nodes, if there are any.
    """

    family: str
    name: str
    nodes: int
    selector: dict[str, str]


class HeadroomShape(Document, frozen=True):
    """A row of the table: a pod shape, and for each pool the number of further copies that fit.

    Lists have one element for each pool. `emulatedCounts` is the part of `counts` that would run under emulation. A
    count whose `exact` is false is a lower bound. `reasons` contains the most frequent reason for rejection in each
    pool where no copy fits.
    """

    cpu: str | None
    memory: str | None
    isa: str | None
    emulated: str | None
    cards: int
    milli: int | None
    gpu_memory_mib: int | None
    model: str | None
    zones: str | None
    others: dict[str, str]
    plain: bool
    workloads: int
    like: str | None
    manifest: dict[str, Any]
    counts: list[int]
    emulated_counts: list[int]
    exact: list[bool]
    reasons: list[str | None]


class HeadroomTable(Document, frozen=True):
    """Table of the further copies of common pod shapes that fit at one revision of a cluster."""

    cluster: str
    revision: int
    policy: PolicyRef
    counted_at: datetime
    pools: list[HeadroomPool]
    shapes: list[HeadroomShape]


class HeadroomView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = request_scope.CLUSTER_QUERY

    @extend_schema(responses=HeadroomTable)
    def get(self, request: Any) -> HttpResponse:
        """Show the number of further copies of the most common pod shapes that fit now, by pool."""
        cluster = request_scope.selected_cluster(request)
        table = headroom(cluster)
        if table is None:
            wait = {"Retry-After": str(int(PATIENCE_SECONDS))}
            raise RequestRefused(503, "HeadroomBusy", "the headroom is being computed for the first time", headers=wait)
        return answer(request, _document(cluster.name, table, self.subject))


def _document(cluster: str, table: HeadroomCounts, subject: Subject) -> HeadroomTable:
    return HeadroomTable(
        cluster=cluster,
        revision=table.revision,
        policy=PolicyRef(table.policy, table.policy_version),
        counted_at=table.counted_at,
        pools=[HeadroomPool(pool.family, pool.name, pool.nodes, pool.selector) for pool in table.pools],
        shapes=[_shape(line, subject) for line in table.lines],
    )


def _shape(line: Line, subject: Subject) -> HeadroomShape:
    pod, like = line.common.pod, line.common.like
    shape = pod.shape
    isa, gpu = shape.isa or IsaDemand(), shape.gpu or GpuDemand(0)
    others = {name: format_amount(name, amount) for name, amount in shape.requests if name not in _SHOWN_RESOURCES}
    return HeadroomShape(
        cpu=_amount(shape, CPU),
        memory=_amount(shape, MEMORY),
        isa=isa.native or isa.qemu or isa.cross or None,
        emulated=isa.emulated or None,
        cards=gpu.count,
        milli=gpu.milli if gpu.milli < 1000 else None,
        gpu_memory_mib=gpu.memory_mib or None,
        model="|".join(gpu.models) or None,
        zones=shape.numa.cpu_policy if shape.numa else None,
        others=others,
        plain=_is_plain(shape),
        workloads=line.common.workloads,
        like=like if like and subject.may_in(like.partition("/")[0]) else None,
        manifest=_manifest(pod),
        counts=line.counts,
        emulated_counts=line.emulated,
        exact=line.exact,
        reasons=line.reasons,
    )


def _amount(shape: Shape, resource: str) -> str | None:
    amount = shape.request(resource)
    return format_amount(resource, amount) if amount else None


def _is_plain(shape: Shape) -> bool:
    """Return whether the shape requests only CPU, memory, ISA and GPUs."""
    isa, gpu = shape.isa or IsaDemand(), shape.gpu or GpuDemand(0)
    by_selector = isa.source.startswith("kubernetes.io")
    odd_isa = isa.cross or isa.qemu or isa.images or by_selector
    odd_gpu = gpu.cores or gpu.exact_models or gpu.vendor not in ("", "nvidia")
    choosing = shape.node_selector or shape.node_terms is not None or shape.tolerations
    odd = (
        shape.numa
        or shape.guaranteed
        or shape.expected_watts
        or not {name for name, _ in shape.requests} <= _SHOWN_RESOURCES
    )
    return not (odd_isa or odd_gpu or choosing or odd)


def _manifest(pod: PodSpec) -> dict[str, Any]:
    """Return the pod as a Kubernetes object without its namespace."""
    plain = pod_object(pod, compact=True)
    plain["metadata"].pop("namespace", None)
    return plain


routes = [path("metrics/headroom/", HeadroomView.as_view())]
