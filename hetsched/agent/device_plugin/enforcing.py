"""The part of the agent that gives out cards: one plugin for each vendor whose cards the machine has.

Rule: with `enforce` the agent takes `nvidia.com/gpu` and `amd.com/gpu`, each as soon as the machine has a whole card of
that vendor. Cards are looked at again every `LOOK_SECONDS`, so one that falls ill is told to the kubelet. Otherwise
nothing is served: another plugin gives cards out, and what it gave is reported as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from hetsched.contracts.agent_report import MachineProblem

from ..pins.grants import Grants
from ..probe_cards import described, read_cards
from ..tree import Tree
from .choosing import PodGrant
from .handed import HandedOutCards
from .plugin import CardPlugin, GrantSource
from .serving import Serving
from .settings import CardSettings, way_of
from .slots import Card, cards_from

RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
LOOK_SECONDS = 30.0
# pod uid -> container -> resource -> device ids, by the kubelet
Devices = Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]]


class SignedGrants:
    """The cards in the verified allocations of this node; `ask` has the control plane asked for newer ones."""

    def __init__(self, grants: Grants, ask: Callable[[float], None]) -> None:
        self._grants = grants
        self._ask = ask

    def grants(self) -> Sequence[PodGrant]:
        known = list(self._grants.known.items())
        return [PodGrant(uid, one.granted.gpus) for uid, one in known if one.granted.gpus]

    def refresh(self, seconds: float) -> None:
        self._ask(seconds)


class CardKeeper:
    """All card plugins of one machine. `held` reads what containers hold, None where the kubelet does not tell."""

    def __init__(
        self,
        settings: CardSettings,
        source: GrantSource,
        held: Callable[[], Devices | None],
        read: Callable[[], dict[str, tuple[Card, ...]] | None] | None = None,
    ) -> None:
        self._settings, self._source, self._held = settings, source, held
        self._read = read or cards_of_this_machine
        self._serving: dict[str, Serving] = {}
        self._look_at = 0.0

    @property
    def grants_are(self) -> str:
        """What the grants of cards are on this machine: enforced or advisory."""
        return "enforced" if self._settings.mode == "enforce" else "advisory"

    @property
    def problems(self) -> tuple[MachineProblem, ...]:
        found = [
            MachineProblem("CardsNotServed", serving.problem, resource)
            for resource, serving in sorted(self._serving.items())
            if serving.problem
        ]
        return (*found, *(one for serving in self._serving.values() for one in serving.plugin.handed.problems))

    def tick(self) -> None:
        """Do what is to be done now; to be called about once a second."""
        if self._settings.mode != "enforce":
            return
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look()
        for serving in self._serving.values():
            serving.tick()

    def actual(self, devices: Devices) -> dict[str, dict[str, dict[str, tuple[str, ...]]]]:
        """Return what containers hold, with cards in place of slots where this machine's plugins gave them."""
        found = {
            uid: {
                container: {name: tuple(ids) for name, ids in given.items()} for container, given in containers.items()
            }
            for uid, containers in devices.items()
        }
        for serving in self._serving.values():
            found = serving.plugin.actual(found)
        return found

    def stop(self) -> None:
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
            HandedOutCards(Path(settings.state_directory) / f"cards-{vendor}.json"),
            in_use=lambda: self._in_use(resource),
            slots=settings.slots,
            way=way_of(settings, Tree()),
            slicing_directory=settings.slicing_directory,
        )
        return Serving(plugin, Path(settings.kubelet_directory))

    def _in_use(self, resource: str) -> Collection[str] | None:
        held = self._held()
        if held is None:
            return None
        return {one for pod in held.values() for given in pod.values() for one in given.get(resource, ())}


def cards_of_this_machine() -> dict[str, tuple[Card, ...]] | None:
    """Return the whole cards of this machine by vendor, None where they cannot be read."""
    tree = Tree()
    readings = read_cards(tree)
    if readings is None:
        return None
    zones = {card.index: card.zone for card in described(tree, readings)}
    return {vendor: cards_from(readings, zones, vendor) for vendor in RESOURCES}
