"""Findings of a collector about nodes: facts that the node itself cannot know, and the measured usage of the node.

A value that a source does not report is omitted and not 0. Amounts are integers in base units. Each finding has the
time of its observation (RFC 3339); the consumer decides how old a finding may be.
"""

from __future__ import annotations

import msgspec

from .node_report import PowerReport


class NodeAlias(msgspec.Struct, frozen=True):
    """Names by which external sources may identify a node: its name and its addresses."""

    name: str
    addresses: tuple[str, ...] = ()


class CollectedNode(msgspec.Struct, frozen=True, rename="camel"):
    """Finding of one source about one node. `zones` is the capacity for offline work in millicores, by zone name."""

    node: str
    observed_at: str
    usage: dict[str, int] = {}
    zones: dict[str, int] = {}
    power: PowerReport | None = None


class Collected(msgspec.Struct, frozen=True, rename="camel"):
    """All findings of one collector at one time, by node; `problems` describes unusable parts of the response."""

    findings: tuple[CollectedNode, ...] = ()
    problems: tuple[str, ...] = ()


class CollectedFact(msgspec.Struct, frozen=True, rename="camel"):
    """Latest finding of one collector about a node; `load` is true if the collector measures usage.

    `finding` is None if the collector never reported this node. `stale` means that the finding is too old to be used.
    """

    collector: str
    load: bool
    finding: CollectedNode | None = None
    stale: bool = False
