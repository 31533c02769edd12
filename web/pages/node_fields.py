"""What the nodes of a list can be filtered by."""

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
    Field("name", Kind(), gettext_lazy("name of the node; * stands for anything"), lambda row: row.name),
    Field("state", Choice(*STATES), gettext_lazy("may it be used"), lambda row: row.state),
    Field("pool", Kind(), gettext_lazy("the group it belongs to"), lambda row: row.pool, found=True),
    Field(
        "arch",
        Choice(*FAMILIES),
        gettext_lazy("family of instruction sets"),
        lambda row: row.family,
    ),
    Field(
        "isa",
        IsaKind(),
        gettext_lazy(">= runs programs for it; <= has nothing beyond it"),
        lambda row: row.isa or None,
        found=True,
    ),
    Field("cpu", Number(percent=True), gettext_lazy("CPU requested, percent"), ratio(CPU)),
    Field("memory", Number(percent=True), gettext_lazy("memory requested, percent"), ratio(MEMORY)),
    Field("gpu", Number(percent=True), gettext_lazy("cards granted, percent"), ratio("gpu")),
    Field("free.cpu", Quantity(CPU), gettext_lazy("CPUs not requested"), free(CPU)),
    Field("free.memory", Quantity(MEMORY), gettext_lazy("memory not requested"), free(MEMORY)),
    Field("free.gpu", Number(), gettext_lazy("cards not granted"), free("gpu")),
    Field("total.cpu", Quantity(CPU), gettext_lazy("allocatable CPUs"), whole(CPU)),
    Field("total.memory", Quantity(MEMORY), gettext_lazy("allocatable memory"), whole(MEMORY)),
    Field("total.gpu", Number(), gettext_lazy("cards"), lambda row: row.cards),
    Field(
        "gpu.model",
        Model(),
        gettext_lazy("card model, as pods name it"),
        lambda row: row.told.models or None,
        heavy=True,
        found=True,
    ),
    Field(
        "gpu.memory",
        Quantity(MEMORY),
        gettext_lazy("memory of its largest card"),
        lambda row: row.told.card_memory_bytes,
        heavy=True,
    ),
    Field("zones", Number(), gettext_lazy("NUMA zones"), lambda row: row.told.zones, heavy=True),
    Field("pods", Number(), gettext_lazy("pods on it"), lambda row: row.pods),
    Field("label", Labels(), gettext_lazy("a label by its key"), lambda row: row.told.labels, heavy=True, found=True),
    Field(
        "taint",
        Any_(),
        gettext_lazy("key=value:effect of a taint; * stands for anything"),
        lambda row: row.told.taints,
        heavy=True,
        found=True,
    ),
    Field(
        "doubtful", Choice("yes", "no"), gettext_lazy("facts that its kubelet contradicts"), lambda row: row.doubtful
    ),
    Field("reported", Age(), gettext_lazy("time since its last report"), lambda row: row.updated_at),
)
