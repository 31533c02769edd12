"""The filter fields of the node list."""

from __future__ import annotations

from collections.abc import Callable

from django.utils.translation import gettext_lazy

from hetsched.contracts.units import CPU, MEMORY

from .lists.expressions import Field
from .lists.kinds import Age, Any_, Choice, IsaKind, Kind, Labels, Model, Number, Quantity
from .node_rows import NodeRow

STATES = ("ready", "cordoned", "not-ready", "gone")
FAMILIES = ("riscv", "arm", "x86", "unknown")


def ratio(resource: str) -> Callable[[NodeRow], float | None]:
    return lambda row: row.ratio(resource)


def free(resource: str) -> Callable[[NodeRow], float | None]:
    return lambda row: row.free(resource)


def whole(resource: str) -> Callable[[NodeRow], int | None]:
    return lambda row: row.allocatable.get(resource)


FIELDS = (
    Field("name", Kind(), gettext_lazy("node name; * is a wildcard"), lambda row: row.name),
    Field("state", Choice(*STATES), gettext_lazy("node state"), lambda row: row.state),
    Field(
        "maintenance",
        Choice("yes", "no"),
        gettext_lazy("has a GPU or a NUMA zone in maintenance"),
        lambda row: row.maintenance,
    ),
    Field("pool", Kind(), gettext_lazy("node pool"), lambda row: row.pool, found=True),
    Field(
        "arch",
        Choice(*FAMILIES),
        gettext_lazy("ISA family"),
        lambda row: row.family,
    ),
    Field(
        "isa",
        IsaKind(),
        gettext_lazy(">= runs binaries for this ISA; <= has no extensions beyond it"),
        lambda row: row.isa or None,
        found=True,
    ),
    Field("cpu", Number(percent=True), gettext_lazy("requested CPU (percent)"), ratio(CPU)),
    Field("memory", Number(percent=True), gettext_lazy("requested memory (percent)"), ratio(MEMORY)),
    Field("gpu", Number(percent=True), gettext_lazy("allocated GPUs (percent)"), ratio("gpu")),
    Field("free.cpu", Quantity(CPU), gettext_lazy("free CPUs"), free(CPU)),
    Field("free.memory", Quantity(MEMORY), gettext_lazy("free memory"), free(MEMORY)),
    Field("free.gpu", Number(), gettext_lazy("free GPUs"), free("gpu")),
    Field("total.cpu", Quantity(CPU), gettext_lazy("allocatable CPUs"), whole(CPU)),
    Field("total.memory", Quantity(MEMORY), gettext_lazy("allocatable memory"), whole(MEMORY)),
    Field("total.gpu", Number(), gettext_lazy("GPUs"), lambda row: row.cards),
    Field(
        "gpu.model",
        Model(),
        gettext_lazy("GPU model, as in pod requests"),
        lambda row: row.told.models or None,
        heavy=True,
        found=True,
    ),
    Field(
        "gpu.memory",
        Quantity(MEMORY),
        gettext_lazy("memory of the largest GPU"),
        lambda row: row.told.card_memory_bytes,
        heavy=True,
    ),
    Field("zones", Number(), gettext_lazy("NUMA zones"), lambda row: row.told.zones, heavy=True),
    Field("pods", Number(), gettext_lazy("number of pods"), lambda row: row.pods),
    Field("label", Labels(), gettext_lazy("label by key"), lambda row: row.told.labels, heavy=True, found=True),
    Field(
        "taint",
        Any_(),
        gettext_lazy("taint as key=value:effect; * is a wildcard"),
        lambda row: row.told.taints,
        heavy=True,
        found=True,
    ),
    Field("doubtful", Choice("yes", "no"), gettext_lazy("facts contradicted by the kubelet"), lambda row: row.doubtful),
    Field("reported", Age(), gettext_lazy("age of the last report"), lambda row: row.updated_at),
)
