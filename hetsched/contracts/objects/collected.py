"""Findings of a collector about nodes: facts that a node itself cannot know, and its measured use.

A value that a source does not state is left out, never 0. Amounts are integers in base units. Each finding has the time
of its observation, RFC 3339; the consumer decides how old it may be.
"""

from __future__ import annotations

import msgspec

from .node_report import PowerReport


class NodeAlias(msgspec.Struct, frozen=True):
    """Names of a node in external sources: its own name, and its addresses."""

    name: str
    addresses: tuple[str, ...] = ()


class CollectedNode(msgspec.Struct, frozen=True, rename="camel"):
    """One source about one node. `zones` is the capacity for offline work, in millicores, by zone name."""

    node: str
    observed_at: str
    usage: dict[str, int] = {}
    zones: dict[str, int] = {}
    power: PowerReport | None = None


class Collected(msgspec.Struct, frozen=True, rename="camel"):
    """All findings of one collector at one moment, by node; `problems` describe the unusable parts."""

    findings: tuple[CollectedNode, ...] = ()
    problems: tuple[str, ...] = ()


class CollectedFact(msgspec.Struct, frozen=True, rename="camel"):
    """Latest finding of one collector about a node; `load`: it measures use.

    `finding` None: it never reported this node. `stale`: the finding is too old to be used.
    """

    collector: str
    load: bool
    finding: CollectedNode | None = None
    stale: bool = False
