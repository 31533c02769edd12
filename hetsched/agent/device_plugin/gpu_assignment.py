"""GPU assignment of the agent: one device plugin for each GPU vendor of the machine.

The agent serves `nvidia.com/gpu` and `amd.com/gpu`, each as soon as the machine has a whole GPU of that vendor. GPUs
are read again every `POLL_SECONDS`, so that an unhealthy GPU is reported to the kubelet. Reports to the control plane
contain the GPUs of containers instead of the kubelet's slots.

Grants are part of the control plane's responses to reports. A pod can reach its kubelet before the agent's next report.
The kubelet then requests the pod's GPUs before the agent has received the grant. Every response contains all grants of
the node; an allocation whose signature does not match this node's key is ignored. A caller that needs newer grants
triggers a report and waits for the response.
"""

from __future__ import annotations

import os
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from hetsched.agent.pins.grants import Grants
from hetsched.contracts.messages.agent_message import AgentAnswer
from hetsched.contracts.messages.agent_report import AgentReport, MachineProblem

from ..gpus.probe import describe_cards, read_cards
from ..kubelet.podresources import PodResourcesClient, PodResourcesFailure
from ..tree import Tree
from .assignments import AssignmentRecord
from .plugin import CardPlugin
from .pod_selection import PodGrant
from .server import PluginServer
from .settings import CardSettings, card_settings, resolve_way
from .slots import Card, cards_from


class ReceivedGrants:
    """Verified grants in the order of the responses that first contained them; `send_now` triggers a report at once."""

    def __init__(self, node: str, send_now: Callable[[], None]) -> None:
        self._grants = Grants(node)
        self._send_now = send_now
        self._news = threading.Condition()
        self._answers = 0

    @property
    def problems(self) -> tuple[MachineProblem, ...]:
        with self._news:
            return self._grants.problems

    def receive(self, answer: AgentAnswer) -> None:
        """Process the grants in a response of the control plane, and wake callers of `refresh`."""
        try:
            key = urlsafe_b64decode(answer.key)
        except ValueError:
            key = b""
        with self._news:
            if key:
                self._grants.learn(answer.cluster, key)
                self._grants.answered((allocation.uid, allocation.allocation) for allocation in answer.allocations)
                self._grants.forget({allocation.uid for allocation in answer.allocations})
            self._answers += 1
            self._news.notify_all()

    def grants(self) -> Sequence[PodGrant]:
        with self._news:
            known = list(self._grants.known.items())
        return [PodGrant(uid, grant.granted.gpus) for uid, grant in known if grant.granted.gpus]

    def refresh(self, seconds: float) -> None:
        """Send a report now and wait for the response, at most `seconds`."""
        until = time.monotonic() + seconds
        with self._news:
            before = self._answers
            self._send_now()
            while self._answers == before and (remaining := until - time.monotonic()) > 0:
                self._news.wait(remaining)


RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
POLL_SECONDS = 30.0
# Returns the ids of a resource's devices that containers hold, or None if the kubelet does not report them.
Held = Callable[[str], Collection[str] | None]


class CardKeeper:
    """All GPU device plugins of one machine."""

    def __init__(
        self,
        settings: CardSettings,
        source: ReceivedGrants,
        held: Held | None = None,
        read: Callable[[], dict[str, tuple[Card, ...]] | None] | None = None,
    ) -> None:
        self._settings, self._source = settings, source
        self._held = held or HeldByContainers()
        self._read = read or read_local_cards
        self._serving: dict[str, PluginServer] = {}
        self._look_at = float("-inf")

    @property
    def problems(self) -> tuple[MachineProblem, ...]:
        found = [
            MachineProblem("CardsNotServed", serving.problem, resource)
            for resource, serving in sorted(self._serving.items())
            if serving.problem
        ]
        records = [problem for serving in self._serving.values() for problem in serving.plugin.handed.problems]
        return (*found, *records, *self._source.problems)

    def step(self) -> None:
        """Reread the GPUs every `POLL_SECONDS` and keep the plugins registered; must be called every few seconds."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + POLL_SECONDS
            self._refresh()
        for serving in self._serving.values():
            serving.tick()

    def with_assigned(self, report: AgentReport) -> AgentReport:
        """Return a report with the GPUs of containers in place of the kubelet's slots."""
        if report.kubelet is None:
            return report
        devices = report.kubelet.devices
        for serving in self._serving.values():
            devices = serving.plugin.actual(devices)
        kubelet = msgspec.structs.replace(report.kubelet, devices=devices)
        return msgspec.structs.replace(report, kubelet=kubelet, problems=(*report.problems, *self.problems))

    def close(self) -> None:
        for serving in self._serving.values():
            serving.stop()

    def _refresh(self) -> None:
        by_vendor = self._read()
        if by_vendor is None:
            return  # keep the last state if the GPUs cannot be read
        for vendor, resource in RESOURCES.items():
            cards = by_vendor.get(vendor, ())
            if resource not in self._serving and not cards:
                continue
            if resource not in self._serving:
                self._serving[resource] = self._plugin(vendor, resource)
            self._serving[resource].plugin.set_cards(cards)

    def _plugin(self, vendor: str, resource: str) -> PluginServer:
        settings = self._settings
        plugin = CardPlugin(
            resource,
            self._source,
            AssignmentRecord(settings.state / f"cards-{vendor}.json"),
            in_use=partial(self._held, resource),
            slots=settings.slots,
            way=resolve_way(settings, Tree()),
            slicing_directory=settings.slicing_directory,
        )
        return PluginServer(plugin, settings.kubelet)


class HeldByContainers:
    """Devices that containers hold according to the kubelet's podresources API."""

    def __init__(self, lister: PodResourcesClient | None = None) -> None:
        self._lister = lister or PodResourcesClient()

    def __call__(self, resource: str) -> Collection[str] | None:
        try:
            pods = self._lister.pods()
        except PodResourcesFailure:
            return None
        devices = (held for pod in pods for container in pod.containers for held in container.devices)
        return {one for held in devices if held.resource == resource for one in held.ids}


class MessageSender(Protocol):
    """Sender of messages to the control plane."""

    def add_listener(self, listener: Callable[[AgentAnswer], None]) -> None: ...
    def send_now(self) -> None: ...


def card_keeper(
    node: str, sender: MessageSender, state: Path, environment: Mapping[str, str] = os.environ
) -> CardKeeper:
    """Return the GPU device plugins of this machine, with the grants that `sender` receives. Raises: InputError."""
    source = ReceivedGrants(node, sender.send_now)
    sender.add_listener(source.receive)
    return CardKeeper(card_settings(environment, state), source)


def read_local_cards() -> dict[str, tuple[Card, ...]] | None:
    """Return the whole GPUs of this machine by vendor, or None if they cannot be read."""
    tree = Tree()
    readings = read_cards(tree)
    if readings is None:
        return None
    zones = {card.index: card.zone for card in describe_cards(tree, readings)}
    return {vendor: cards_from(readings, zones, vendor) for vendor in RESOURCES}
