"""The filter fields of the node list."""

from __future__ import annotations

from collections.abc import Callable

from django.utils.translation import gettext_lazy

from hetsched.contracts.units import CPU, MEMORY

from ..lists.expressions import FilterField
from ..lists.kinds import Age, AnyKind, ChoiceKind, IsaKind, Labels, Model, NumberKind, Quantity, ValueKind
from .rows import NodeListRow

STATES = ("ready", "cordoned", "not-ready", "gone")
FAMILIES = ("riscv", "arm", "x86", "unknown")


def ratio(resource: str) -> Callable[[NodeListRow], float | None]:
    return lambda row: row.ratio(resource)


def free(resource: str) -> Callable[[NodeListRow], float | None]:
    return lambda row: row.free(resource)


def whole(resource: str) -> Callable[[NodeListRow], int | None]:
    return lambda row: row.allocatable.get(resource)


FIELDS = (
    FilterField("name", ValueKind(), gettext_lazy("node name; * is a wildcard"), lambda row: row.name),
    FilterField("state", ChoiceKind(*STATES), gettext_lazy("node state"), lambda row: row.state),
    FilterField(
        "maintenance",
        ChoiceKind("yes", "no"),
        gettext_lazy("has a GPU or a NUMA zone in maintenance"),
        lambda row: row.maintenance,
    ),
    FilterField("pool", ValueKind(), gettext_lazy("node pool"), lambda row: row.pool, found=True),
    FilterField(
        "arch",
        ChoiceKind(*FAMILIES),
        gettext_lazy("ISA family"),
        lambda row: row.family,
    ),
    FilterField(
        "isa",
        IsaKind(),
        gettext_lazy(
            ">= finds nodes that run binaries for this ISA; <= finds nodes without extensions beyond this ISA"
        ),
        lambda row: row.isa or None,
        found=True,
    ),
    FilterField("cpu", NumberKind(percent=True), gettext_lazy("requested CPU (percent)"), ratio(CPU)),
    FilterField("memory", NumberKind(percent=True), gettext_lazy("requested memory (percent)"), ratio(MEMORY)),
    FilterField("gpu", NumberKind(percent=True), gettext_lazy("allocated GPUs (percent)"), ratio("gpu")),
    FilterField("free.cpu", Quantity(CPU), gettext_lazy("free CPUs"), free(CPU)),
    FilterField("free.memory", Quantity(MEMORY), gettext_lazy("free memory"), free(MEMORY)),
    FilterField("free.gpu", NumberKind(), gettext_lazy("free GPUs"), free("gpu")),
    FilterField("total.cpu", Quantity(CPU), gettext_lazy("allocatable CPUs"), whole(CPU)),
    FilterField("total.memory", Quantity(MEMORY), gettext_lazy("allocatable memory"), whole(MEMORY)),
    FilterField("total.gpu", NumberKind(), gettext_lazy("GPUs"), lambda row: row.cards),
    FilterField(
        "gpu.model",
        Model(),
        gettext_lazy("GPU model, as in pod requests"),
        lambda row: row.summary.models or None,
        heavy=True,
        found=True,
    ),
    FilterField(
        "gpu.memory",
        Quantity(MEMORY),
        gettext_lazy("memory of the largest GPU"),
        lambda row: row.summary.card_memory_bytes,
        heavy=True,
    ),
    FilterField("zones", NumberKind(), gettext_lazy("NUMA zones"), lambda row: row.summary.zones, heavy=True),
    FilterField("pods", NumberKind(), gettext_lazy("number of pods"), lambda row: row.pods),
    FilterField(
        "label",
        Labels(),
        gettext_lazy("value of the label with this key"),
        lambda row: row.summary.labels,
        heavy=True,
        found=True,
    ),
    FilterField(
        "taint",
        AnyKind(),
        gettext_lazy("taint as key=value:effect; * is a wildcard"),
        lambda row: row.summary.taints,
        heavy=True,
        found=True,
    ),
    FilterField(
        "doubtful", ChoiceKind("yes", "no"), gettext_lazy("facts contradicted by the kubelet"), lambda row: row.doubtful
    ),
    FilterField("reported", Age(), gettext_lazy("age of the last report"), lambda row: row.updated_at),
)
