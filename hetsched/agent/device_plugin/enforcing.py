"""The part of the agent that gives out cards: one plugin for each vendor whose cards the machine has.

Rule: the agent takes `nvidia.com/gpu` and `amd.com/gpu`, each as soon as the machine has a whole card of that vendor.
Cards are looked at again every `LOOK_SECONDS`, so one that falls ill is told to the kubelet. What is reported names the
cards that containers have, not the slots that the kubelet counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from hetsched.contracts.agent_message import AgentAnswer
from hetsched.contracts.agent_report import AgentReport, MachineProblem

from ..podresources import Lister, PodResourcesFailure
from ..probe_cards import described, read_cards
from ..tree import Tree
from .handed import HandedOutCards
from .plugin import CardPlugin
from .serving import Serving
from .settings import CardSettings, card_settings, way_of
from .slots import Card, cards_from
from .source import AnsweredGrants

RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
LOOK_SECONDS = 30.0
# Ids of the devices of a resource that containers hold, None where the kubelet does not tell.
Held = Callable[[str], Collection[str] | None]


class CardKeeper:
    """All card plugins of one machine."""

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
        self._serving: dict[str, Serving] = {}
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
        """Do what is to be done now; to be called every few seconds."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look()
        for serving in self._serving.values():
            serving.tick()

    def told(self, report: AgentReport) -> AgentReport:
        """Return a report with the cards that containers hold in place of the slots that the kubelet counts."""
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
            return  # what is not known now is as it was
        for vendor, resource in RESOURCES.items():
            cards = by_vendor.get(vendor, ())
            if resource not in self._serving and not cards:
                continue
            if resource not in self._serving:
                self._serving[resource] = self._plugin(vendor, resource)
            self._serving[resource].plugin.set_cards(cards)

    def _plugin(self, vendor: str, resource: str) -> Serving:
        settings = self._settings
        plugin = CardPlugin(
            resource,
            self._source,
            HandedOutCards(settings.state / f"cards-{vendor}.json"),
            in_use=partial(self._held, resource),
            slots=settings.slots,
            way=way_of(settings, Tree()),
            slicing_directory=settings.slicing_directory,
        )
        return Serving(plugin, settings.kubelet)


class HeldByContainers:
    """What the kubelet's podresources show."""

    def __init__(self, lister: Lister | None = None) -> None:
        self._lister = lister or Lister()

    def __call__(self, resource: str) -> Collection[str] | None:
        try:
            pods = self._lister.pods()
        except PodResourcesFailure:
            return None
        devices = (held for pod in pods for container in pod.containers for held in container.devices)
        return {one for held in devices if held.resource == resource for one in held.ids}


class Sender(Protocol):
    """Who exchanges messages with the control plane."""

    def hear(self, told: Callable[[AgentAnswer], None]) -> None: ...
    def hurry(self) -> None: ...


def card_keeper(node: str, sender: Sender, state: Path, environment: Mapping[str, str] = os.environ) -> CardKeeper:
    """Return who gives cards out on this machine, by the grants that the sender hears of. Raises: InputError."""
    source = AnsweredGrants(node, sender.hurry)
    sender.hear(source.hear)
    return CardKeeper(card_settings(environment, state), source)


def cards_of_this_machine() -> dict[str, tuple[Card, ...]] | None:
    """Return the whole cards of this machine by vendor, None where they cannot be read."""
    tree = Tree()
    readings = read_cards(tree)
    if readings is None:
        return None
    zones = {card.index: card.zone for card in described(tree, readings)}
    return {vendor: cards_from(readings, zones, vendor) for vendor in RESOURCES}
