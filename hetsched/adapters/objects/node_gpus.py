"""Reader of a NodeGpu: the GPUs of a node and the links between them."""

from __future__ import annotations

import msgspec

from hetsched.contracts.message import Message
from hetsched.contracts.objects.cards import MAX_CARD_UUID, MAX_CARDS, vendor_of
from hetsched.contracts.objects.node_report import LINK_KINDS, CardLink, GpuCard, NodeReport
from hetsched.contracts.remedies import ADD_FIELD
from hetsched.contracts.units import GPU_RESOURCES

from .fields import FieldView

_CHANGE_ONE = "Change one of them"


def cards(root: FieldView) -> tuple[GpuCard, ...]:
    """Read the GPUs of a NodeGpu."""
    found: list[GpuCard] = []
    seen: set[int] = set()
    uuids: set[str] = set()
    for view in root.view("spec").views("cards"):
        if "index" not in view:
            view.fail("is required", "index", hint=ADD_FIELD)
        index = view.integer("index", most=MAX_CARDS - 1)
        if index in seen:
            view.fail(Message("two GPUs have index {n}", n=index), "index", code="CardDuplicate", hint=_CHANGE_ONE)
        seen.add(index)
        uuid = view.text("uuid")
        if len(uuid) > MAX_CARD_UUID:
            view.fail(Message("may have at most {n} characters", n=MAX_CARD_UUID), "uuid")
        if uuid in uuids:
            message = Message("two GPUs have the UUID {text}", text=repr(uuid))
            view.fail(message, "uuid", code="CardDuplicate", hint=_CHANGE_ONE)
        uuids |= {uuid} - {""}
        model = view.text("model") or None
        found.append(
            GpuCard(
                index=index,
                uuid=uuid or None,
                model=model,
                vendor=view.text("vendor").lower() or vendor_of(model or ""),
                memory_mib=view.maybe_integer("memoryMiB", most=2**40),
                cores=view.maybe_integer("cores", most=2**31),
                fp32_tflops=view.maybe_number("fp32Tflops"),
                bandwidth_gbs=view.maybe_number("bandwidthGBs"),
                clock_mhz=view.maybe_integer("clockMHz", most=2**31),
                numa_zone=view.text("numaZone") or None,
                healthy=view.flag("healthy", True) and not view.flag("maintenance", False),
                maintenance=view.flag("maintenance", False),
                links=_links(view, index),
            )
        )
    return tuple(found)


def _links(card: FieldView, index: int) -> tuple[CardLink, ...]:
    """Read the links of a GPU to other GPUs of its node."""
    found: dict[int, CardLink] = {}
    for view in card.views("links"):
        if "to" not in view:
            view.fail("is required", "to", hint=ADD_FIELD)
        to = view.integer("to", most=MAX_CARDS - 1)
        if to == index or to in found:
            itself = Message("GPU {n} has a link to itself", n=index)
            twice = Message("GPU {n} has two links to GPU {m}", n=index, m=to)
            view.fail(itself if to == index else twice, "to", hint="Remove this link")
        found[to] = CardLink(to, view.choice("kind", LINK_KINDS), view.maybe_number("bandwidthGBs", most=1e6))
    return tuple(found[to] for to in sorted(found))


def with_vendors(report: NodeReport) -> NodeReport:
    """Set the vendor of GPUs whose model does not identify it, if the node offers the resource of only one vendor."""
    offered = [resource.split(".", 1)[0] for resource in GPU_RESOURCES if report.allocatable.get(resource)]
    if len(offered) != 1 or not report.gpus or all(card.vendor for card in report.gpus):
        return report
    named = tuple(card if card.vendor else msgspec.structs.replace(card, vendor=offered[0]) for card in report.gpus)
    return msgspec.structs.replace(report, gpus=named)
