"""Headroom of a node: the number of additional copies of the most common pod shapes that fit, and the limiting
resource.

The engine's own filters compute it (`hetsched.engine.simulation.node_capacity`). The summary describes the shape that
fits and is requested by the most workloads.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import CPU, GPU_RESOURCES, MEMORY, PODS
from hetsched.engine.simulation.node_capacity import CARD_MEMORY, CARDS, ZONE_CPU, ZONE_MEMORY, NodeCapacity
from hetsched.inventory.models import Node
from hetsched.placement.queries.node_headroom import ShapeHeadroom, headroom_on

from ..amounts import amount_words, mib_words


class HeadroomSummary(msgspec.Struct, frozen=True):
    """The headroom of a node: a summary sentence, and a row for each pod shape."""

    sentence: str
    rows: list[dict[str, Any]]


def headroom_of(node: Node) -> HeadroomSummary | None:
    """Return the headroom of a node, or None if its cluster has no active policy."""
    found = headroom_on(node.cluster, node.name)
    if not found:
        return None
    return HeadroomSummary(_sentence(found), [_row(shape_headroom) for shape_headroom in found])


def _row(shape_headroom: ShapeHeadroom) -> dict[str, Any]:
    room = shape_headroom.room
    return {
        "shape": shape_text(shape_headroom.common.pod),
        "like": shape_headroom.common.like,
        "copies": room.copies,
        "exact": room.exact,
        "binding": binding_text(room),
        "message": _more(room),
    }


def _more(room: NodeCapacity) -> str:
    """Return why no further copy fits, or "" if a resource is exhausted, because `binding_text` names the resource."""
    return "" if room.reason is None or room.reason.code == "InsufficientResource" else room.reason.message


def _sentence(found: list[ShapeHeadroom]) -> str:
    fitting = [shape_headroom for shape_headroom in found if shape_headroom.room.copies]
    best = max(
        fitting or found, key=lambda shape_headroom: (shape_headroom.common.workloads, shape_headroom.room.copies)
    )
    room, names = best.room, {"shape": best.common.like or shape_text(best.common.pod)}
    binding = binding_text(room)
    if not fitting:
        said = _("None of the common pod shapes fits now.")
        return (
            f"{said} {_('The limiting resource for %(shape)s is %(binding)s.') % {**names, 'binding': binding}}"
            if binding
            else said
        )
    if not room.exact:
        return _("At least %(count)d more pods like %(shape)s fit.") % {**names, "count": room.copies}
    said = ngettext("%(count)d more pod like %(shape)s fits", "%(count)d more pods like %(shape)s fit", room.copies)
    text = said % {**names, "count": room.copies}
    if not binding:
        return f"{text}."
    return _("%(fits)s; %(binding)s is the limiting resource.") % {"fits": text, "binding": binding}


def binding_text(room: NodeCapacity) -> str:
    """Return the translated name of the limiting resource, or the engine's name if there is no translation.

    The result is "" if no resource is the limit.
    """
    named = {
        CARDS: _("GPUs"),
        CARD_MEMORY: _("GPU memory"),
        ZONE_CPU: _("CPUs of one NUMA zone"),
        ZONE_MEMORY: _("memory of one NUMA zone"),
        CPU: _("CPU"),
        MEMORY: _("memory"),
        PODS: _("pod count"),
    }
    return named.get(room.binding, room.binding)


def shape_text(pod: PodSpec) -> str:
    """Describe the requests of a shape in a few words."""
    shape, parts = pod.shape, []
    for name, amount in shape.requests:
        if not amount or name == PODS or name in GPU_RESOURCES:
            continue
        words = amount_words(name, amount)
        if name == CPU:
            words = _("1 CPU") if words == "1" else _("%(cpus)s CPUs") % {"cpus": words}
        elif name != MEMORY:
            words = f"{words} {name}"
        parts.append(words)
    gpu = shape.gpu
    if gpu is not None and gpu.count:
        if gpu.milli < 1000:
            parts.append(_("%(milli)d ‰ of a GPU") % {"milli": gpu.milli})
        else:
            parts.append(ngettext("%(count)d GPU", "%(count)d GPUs", gpu.count) % {"count": gpu.count})
        if gpu.memory_mib:
            parts.append(_("%(memory)s of GPU memory") % {"memory": mib_words(gpu.memory_mib)})
        parts += gpu.models
    if shape.isa is not None and shape.isa.is_stated:
        parts.append(shape.isa.native or shape.isa.emulated or shape.isa.cross or shape.isa.qemu)
    if shape.numa is not None and shape.numa.cpu_policy != "none":
        parts.append(_("exclusive CPUs"))
    return ", ".join(parts) or _("no requests")
