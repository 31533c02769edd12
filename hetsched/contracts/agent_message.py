"""What the node agent sends to the control plane, and what it is answered.

Rule: one message about one node. `report` is there when something of it changed; else `digest` says which report still
holds, and `usage` and `pinned` are those of now. Messages of one agent are numbered from 1; one that was answered and
comes again changes nothing. Of two agents on a node the one that started later counts.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from .agent_report import AgentReport, MachineProblem, MachineUsage, PinnedContainer

MOST_MESSAGE_BYTES = 4 << 20


class AgentMessage(msgspec.Struct, frozen=True, rename="camel"):
    """One message; `instance` names a start of an agent, at `started_at` in RFC 3339 UTC.

    `gives_cards`: the agent's own device plugin hands them out, so that grants of cards are kept and not advice.
    """

    node: str
    instance: str
    started_at: str
    sequence: int
    digest: str
    report: AgentReport | None = None
    usage: MachineUsage | None = None
    pinned: tuple[PinnedContainer, ...] | None = None
    gives_cards: bool = False


class NodeAllocation(msgspec.Struct, frozen=True, rename="camel"):
    """What a pod holds of the node: `allocation` is the signed text of the annotation `hetsched.io/allocation`."""

    uid: str
    allocation: str


class AgentAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What an agent needs to know: the key that allocations of its node are signed by, and when to write again.

    `problems` are those that the control plane has with the message; `ReportWanted` asks for the whole report.
    """

    cluster: str
    node: str
    epoch: int
    key: str
    report_within_seconds: int
    allocations: list[NodeAllocation] = []
    problems: list[MachineProblem] = []


def steady(report: AgentReport) -> AgentReport:
    """Return a report without what changes all the time: its use, steal and pins."""
    zones, gpus = report.zones, report.gpus
    if zones is not None:
        without = {"steal_ratio": None, "offline_capacity_millis": None}
        zones = tuple(msgspec.structs.replace(zone, **without) for zone in zones)
    if gpus is not None:
        gpus = tuple(msgspec.structs.replace(card, processes=None) for card in gpus)
    return msgspec.structs.replace(report, zones=zones, gpus=gpus, usage=None, pinned=None)


def lasting(report: AgentReport) -> AgentReport:
    """Return a report without what no fact about the machine rests on: use and pins, and what its kubelet gave out."""
    zones, kubelet = report.zones, report.kubelet
    if zones is not None:
        zones = tuple(msgspec.structs.replace(zone, steal_ratio=None) for zone in zones)
    if kubelet is not None:
        kubelet = msgspec.structs.replace(kubelet, exclusive={}, shared_cpus=None, devices={})
    gpus = steady(report).gpus
    return msgspec.structs.replace(report, zones=zones, gpus=gpus, kubelet=kubelet, usage=None, pinned=None)


def digest_of(report: AgentReport) -> str:
    """Return the name of a report by what is steady of it."""
    return sha256(msgspec.json.encode(steady(report))).hexdigest()[:32]
