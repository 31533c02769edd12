"""GPU assignment of the agent: one device plugin for each GPU vendor of the machine.

The agent serves `nvidia.com/gpu` and `amd.com/gpu`, each as soon as the machine has a whole GPU of that vendor. GPUs
are read again every `LOOK_SECONDS`, so that an unhealthy one is reported to the kubelet. Reports name the GPUs of
containers, not the slots that the kubelet counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from hetsched.contracts.messages.agent_message import AgentAnswer
from hetsched.contracts.messages.agent_report import AgentReport, MachineProblem

from ..gpus.probe import described, read_cards
from ..kubelet.podresources import PodResourcesClient, PodResourcesFailure
from ..tree import Tree
from .assignments import AssignmentRecord
from .plugin import CardPlugin
from .server import PluginServer
from .settings import CardSettings, card_settings, way_of
from .slots import Card, cards_from
from .source import AnsweredGrants

RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
LOOK_SECONDS = 30.0
# IDs of the devices of a resource that containers hold, None if the kubelet does not report them.
Held = Callable[[str], Collection[str] | None]


class CardKeeper:
    """All GPU device plugins of one machine."""

    def __init__(
        self,
        settings: CardSettings,
        source: AnsweredGrants,
        held: Held | None = None,
        read: Callable[[], dict[str, tuple[Card, ...]] | None] | None = None,
    ) -> None:
        self._settings, self._source = settings, source
        self._held = held or HeldByContainers()
        self._read = read or cards_of_this_machine
        self._serving: dict[str, PluginServer] = {}
        self._look_at = float("-inf")

    @property
    def problems(self) -> tuple[MachineProblem, ...]:
        found = [
            MachineProblem("CardsNotServed", serving.problem, resource)
            for resource, serving in sorted(self._serving.items())
            if serving.problem
        ]
        records = [one for serving in self._serving.values() for one in serving.plugin.handed.problems]
        return (*found, *records, *self._source.problems)

    def step(self) -> None:
        """Run the due work; call it every few seconds."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look()
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

    def _look(self) -> None:
        by_vendor = self._read()
        if by_vendor is None:
            return  # keep the last state while the GPUs cannot be read
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
            way=way_of(settings, Tree()),
            slicing_directory=settings.slicing_directory,
        )
        return PluginServer(plugin, settings.kubelet)


class HeldByContainers:
    """Devices of containers according to the kubelet's podresources API."""

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
    def hurry(self) -> None: ...


def card_keeper(
    node: str, sender: MessageSender, state: Path, environment: Mapping[str, str] = os.environ
) -> CardKeeper:
    """Return the GPU device plugins of this machine, with the grants that the sender receives. Raises: InputError."""
    source = AnsweredGrants(node, sender.hurry)
    sender.add_listener(source.receive)
    return CardKeeper(card_settings(environment, state), source)


def cards_of_this_machine() -> dict[str, tuple[Card, ...]] | None:
    """Return the whole GPUs of this machine by vendor, None if they cannot be read."""
    tree = Tree()
    readings = read_cards(tree)
    if readings is None:
        return None
    zones = {card.index: card.zone for card in described(tree, readings)}
    return {vendor: cards_from(readings, zones, vendor) for vendor in RESOURCES}
