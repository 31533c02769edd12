"""What a collector found out about nodes: facts that a node itself cannot know, and its measured use.

Rule: what a source does not tell of a node is left out, never 0. Amounts are integers in base units. Each finding says
when its source saw it, RFC 3339; how old that may be is decided by whoever uses it.
"""

from __future__ import annotations

import msgspec

from .node_report import PowerReport


class NodeAlias(msgspec.Struct, frozen=True):
    """The names by which sources may know a node: its own, and its addresses."""

    name: str
    addresses: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True, rename="camel"):
    """One source about one node. `zones` is what offline work may use of a zone, in millicores, by the zone's name."""

    node: str
    observed_at: str
    usage: dict[str, int] = {}
    zones: dict[str, int] = {}
    power: PowerReport | None = None


class Collected(msgspec.Struct, frozen=True, rename="camel"):
    """Everything that one collector found at one moment, by node; `problems` say what of it could not be used."""

    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()


class CollectedFact(msgspec.Struct, frozen=True, rename="camel"):
    """What one collector told of a node last; `load`: it measures use.

    `finding` None: it never told anything of this node. `stale`: that is too old to count.
    """

    collector: str
    load: bool
    finding: Finding | None = None
    stale: bool = False
