"""The instruction sets of a node."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from hetsched.contracts.errors import InputError
from hetsched.inventory.models import Node
from hetsched.isa import parse
from hetsched.placement.models import Reservation
from web.api.documents import Document

from .origin import Origin, origin


class IsaFacts(Document, frozen=True):
    """The instruction sets a node offers; where `complete` is false `native` is a lower bound."""

    origin: Origin
    family: str
    native: str | None
    base: str | None
    extensions: list[str]
    emulated: tuple[str, ...]
    cross: tuple[str, ...]
    complete: bool


def isa_facts(node: Node, held: Iterable[Reservation], now: datetime) -> IsaFacts:
    stated = node.report.isa
    base, extensions = None, list[str]()
    if stated.native:
        try:
            isa = parse(stated.native, source="node-label")
            base, extensions = isa.base, sorted(isa.extensions)
        except InputError:
            pass  # an invalid string is shown unchanged
    return IsaFacts(
        origin=origin(node, now, source=stated.source),
        family=node.isa_family,
        native=stated.native,
        base=base,
        extensions=extensions,
        emulated=stated.emulated,
        cross=stated.cross,
        complete=stated.complete,
    )
