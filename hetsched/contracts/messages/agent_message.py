"""Messages from the node agent to the control plane, and the responses.

A message is about one node. `report` is set when a part of it changed; otherwise `digest` identifies the report that is
still valid. `usage` and `pinned` are always current. Messages of one agent are numbered from 1. Repeating a message
that was already processed has no effect. If a node has two agents, the agent that started later is accepted.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from hetsched.contracts.documents import encode

from ..units import GPU_RESOURCES
from .agent_report import AgentReport, MachineProblem, MachineUsage, PinnedContainer

MOST_MESSAGE_BYTES = 4 << 20


class AgentMessage(msgspec.Struct, frozen=True, rename="camel"):
    """One message; `instance` identifies the agent process, which was started at `started_at` (RFC 3339 UTC).

    `assigns_gpus` (in JSON `givesCards`) means that the agent's device plugin assigns the GPUs, so that GPU grants are
    enforced and not only advisory.
    """

    node: str
    instance: str
    started_at: str
    sequence: int
    digest: str
    report: AgentReport | None = None
    usage: MachineUsage | None = None
    pinned: tuple[PinnedContainer, ...] | None = None
    assigns_gpus: bool = msgspec.field(default=False, name="givesCards")


class NodeAllocation(msgspec.Struct, frozen=True, rename="camel"):
    """Allocation of a pod on the node: `allocation` is the signed text of the annotation `hetsched.io/allocation`."""

    uid: str
    allocation: str


class AgentAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Response to an agent: the key that signs its node's allocations, and the time until the next message.

    `problems` lists problems that the control plane found in the message; the problem `ReportWanted` asks the agent to
    send the whole report.
    """

    cluster: str
    node: str
    epoch: int
    key: str
    report_within_seconds: int
    allocations: list[NodeAllocation] = []
    problems: list[MachineProblem] = []


def steady_parts(report: AgentReport) -> AgentReport:
    """Return a report without the parts that change constantly (usage, steal, pins) and those that the server adds."""
    zones, gpus = report.zones, report.gpus
    if zones is not None:
        without = {"steal_ratio": None, "offline_capacity_millis": None}
        zones = tuple(msgspec.structs.replace(zone, **without) for zone in zones)
    if gpus is not None:
        gpus = tuple(msgspec.structs.replace(card, processes=None) for card in gpus)
    kubelet = report.kubelet and msgspec.structs.replace(report.kubelet, foreign=())
    return msgspec.structs.replace(report, zones=zones, gpus=gpus, kubelet=kubelet, usage=None, pinned=None)


def durable_parts(report: AgentReport) -> AgentReport:
    """Return a report with only the parts that determine facts about the machine, without usage, pins and shared CPUs.

    Of the devices that the kubelet assigned, only devices with zones and devices of unknown pods remain.
    """
    zones, kubelet = report.zones, report.kubelet
    if zones is not None:
        zones = tuple(msgspec.structs.replace(zone, steal_ratio=None) for zone in zones)
    if kubelet is not None:
        zoned, foreign = kubelet.device_zones.keys() - set(GPU_RESOURCES), set(kubelet.foreign)
        devices = {
            pod: {
                name: {resource: ids for resource, ids in held.items() if resource in zoned or pod in foreign}
                for name, held in containers.items()
            }
            for pod, containers in kubelet.devices.items()
        }
        devices = {pod: containers for pod, containers in devices.items() if any(containers.values())}
        kubelet = msgspec.structs.replace(kubelet, shared_cpus=None, devices=devices)
    gpus = steady_parts(report).gpus
    return msgspec.structs.replace(report, zones=zones, gpus=gpus, kubelet=kubelet, usage=None, pinned=None)


def digest_of(report: AgentReport) -> str:
    """Return the digest of the `steady_parts` of a report."""
    return sha256(encode(steady_parts(report))).hexdigest()[:32]
