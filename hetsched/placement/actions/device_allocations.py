"""Follow the cards that pods were really given.

Problem: where another device plugin hands out cards, a grant is advice; the ledger would then keep free what is used,
and give out what is not.
Rule: what an agent reads from its kubelet is compared with what is booked on the node. A pod on other cards is booked
on those (`card_moves`), by ending its reservation and beginning another in the same transaction, so a copy of the state
follows as it follows any booking. What does not add up changes no booking: it is audited, and stands in words at the
pods and their node until it does. Nothing is written where nothing changed.
Invariants: as of `card_moves`; the unique indexes judge as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec
from django.db import IntegrityError, transaction
from django.utils import timezone

from hetsched.contracts.allocation import Allocation
from hetsched.contracts.cards import cards_of
from hetsched.contracts.node_report import GpuCard
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.inventory.ledger import Conflict, advance
from hetsched.inventory.models import Node
from hetsched.journal.audit import SYSTEM
from hetsched.journal.audit import record as audit
from hetsched.placement import dispatch
from hetsched.placement.bookings import Booked
from hetsched.placement.device_moves import Grants, Holder, Moves, moves_of
from hetsched.placement.models import HandedOut, Pod, Reservation

from .change import Change

# pod uid -> container -> resource -> device ids
Devices = Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]]
_MOST_WORDS = 400
_TRIES = 3


class CardsFollowed(msgspec.Struct, frozen=True):
    """What came of it: pods that were booked on other cards, and what is wrong with which pods by now."""

    moved: tuple[str, ...] = ()
    problems: dict[str, str] = {}


def follow_actual_cards(
    cluster_id: int,
    node_name: str,
    devices: Devices,
    *,
    advisory: bool,
    uuids: Mapping[str, str] | None = None,
    resources: Sequence[str] = GPU_RESOURCES,
) -> CardsFollowed:
    """Book the pods of a node on the cards that its kubelet says they have; `advisory`: another plugin chose them.

    `uuids` are the uuids of cards by the other ids that plugins give them: AMD's names PCI addresses.
    Where others move pods of the node at the same moment again and again, nothing is done until the next report.
    """
    for _ in range(_TRIES):
        with suppress(Conflict):
            return _follow(cluster_id, node_name, devices, advisory, resources, uuids or {})
    return CardsFollowed()


def _follow(
    cluster_id: int,
    node_name: str,
    devices: Devices,
    advisory: bool,
    resources: Sequence[str],
    uuids: Mapping[str, str],
) -> CardsFollowed:
    """Follow once. Raises: Conflict."""
    node = Node.objects.filter(cluster_id=cluster_id, name=node_name).first()
    if node is None:
        return CardsFollowed()
    seen = _Seen(node, devices, resources, uuids)
    if seen.is_known(advisory):
        return CardsFollowed(problems=seen.problems)
    try:
        with transaction.atomic():
            change = Change(advance(cluster_id))
            seen = _Seen(Node.objects.get(pk=node.pk), devices, resources, uuids)  # as it is under the lock
            moved = _move(change, seen)
            _note(change, seen, advisory)
            change.touch(seen.pods.values())
            if moved:
                change.requeue()
            change.close()
    except IntegrityError as error:
        raise Conflict(f"cluster {cluster_id}: {error}") from error
    if moved:
        dispatch.wake(cluster_id)
    return CardsFollowed(tuple(moved), seen.problems)


class _Seen:
    """The pods with cards of one node, and what they were given."""

    def __init__(self, node: Node, devices: Devices, resources: Sequence[str], uuids: Mapping[str, str]) -> None:
        held = Reservation.objects.filter(node=node, active=True).select_related("pod").defer("pod__spec")
        self.held = {one.pod.key: one for one in held.order_by("id") if one.allocation.gpus}
        self.pods = {key: one.pod for key, one in self.held.items()}
        self.node = node
        cards = {card.index: card for card in node.report.gpus or cards_of(node.report)}
        unclear: dict[str, str] = {}
        holders = []
        self.has: dict[str, tuple[int, ...] | None] = {}
        for key, one in self.held.items():
            ids = _ids(devices.get(one.pod.uid, {}) if one.pod.uid else {}, resources)
            self.has[key] = _cards([uuids.get(one, one) for one in ids], cards)
            if ids and self.has[key] is None:
                unclear[key] = f"it was given {', '.join(ids)}, which is no whole card that this node reports"
            # Who was given something that nobody can tell stays: only who was given nothing yet makes way.
            stays = tuple(grant.index for grant in one.allocation.gpus) if key in unclear else None
            holders.append(Holder(key, one.allocation.gpus, stays or self.has[key]))
        self.moves: Moves = moves_of(holders, cards)
        self.problems = {key: text[:_MOST_WORDS] for key, text in {**self.moves.problems, **unclear}.items()}

    def is_known(self, advisory: bool) -> bool:
        """Tell whether the rows say all of this already."""
        if self.moves.grants:
            return False
        rows = {row.pod_id: row for row in HandedOut.objects.filter(pod__in=[pod.pk for pod in self.pods.values()])}
        for key, one in self.held.items():
            row = rows.get(one.pod_id)
            if row is None or (row.reservation, row.advisory, row.cards, row.problem) != (
                one.pk, advisory, self.has[key], self.problems.get(key, "")
            ):  # fmt: skip
                return False
        return True


def _ids(containers: Mapping[str, Mapping[str, Sequence[str]]], resources: Sequence[str]) -> list[str]:
    return sorted({one for given in containers.values() for name in resources for one in given.get(name, ())})


def _cards(ids: Sequence[str], cards: Mapping[int, GpuCard]) -> tuple[int, ...] | None:
    """Return the cards that device ids stand for, None where one stands for none; replicas of a card are that card."""
    by_uuid = {card.uuid: card.index for card in cards.values() if card.uuid}
    found = {by_uuid.get(one.partition("::")[0]) for one in ids}
    known = {index for index in found if index is not None}
    return tuple(sorted(known)) if ids and len(known) == len(found) else None


def _move(change: Change, seen: _Seen) -> list[str]:
    """Book pods anew; all of them leave before the first comes."""
    moved = [key for key in seen.held if key in seen.moves.grants]
    specs = {pod.pk: pod.spec for pod in Pod.objects.filter(pk__in=[seen.pods[key].pk for key in moved]).only("spec")}
    change.free([seen.pods[key] for key in moved], "its node gave it other cards")
    bookings = []
    for key in moved:
        pod = seen.pods[key]
        allocation = _with(seen.held[key].allocation, seen.moves.grants[key])
        Pod.objects.filter(pk=pod.pk).update(allocation=allocation)
        bookings.append(Booked(pod.pk, seen.node.pk, specs[pod.pk], allocation))
    change.book(bookings, change.cluster.leader_epoch)
    return moved


def _with(allocation: Allocation, grants: Grants) -> Allocation:
    return msgspec.structs.replace(allocation, gpus=grants)


def _note(change: Change, seen: _Seen, advisory: bool) -> None:
    """Write what every pod has, beside what it was granted."""
    now = timezone.now()
    rows = {row.pod_id: row for row in HandedOut.objects.filter(pod__in=[pod.pk for pod in seen.pods.values()])}
    active = Reservation.objects.filter(pod__in=[pod.pk for pod in seen.pods.values()], active=True)
    present = dict(active.values_list("pod_id", "id"))
    news = {
        key: why for key, why in seen.problems.items() if why != getattr(rows.get(seen.pods[key].pk), "problem", "")
    }
    if news:
        about = (seen.node._meta.model_name or "", f"{change.cluster.name}/{seen.node.name}")
        audit(actor=SYSTEM.name, role=SYSTEM.role, action="node.cards", obj=about, details=news)
    for key, one in seen.held.items():
        row = rows.get(one.pod_id)
        # A pod that was placed anew was granted anew; what we moved keeps what it was granted at first.
        granted = row.granted if row is not None and row.reservation == one.pk else one.allocation.gpus
        HandedOut.objects.update_or_create(
            pod_id=one.pod_id,
            defaults={
                "node": seen.node,
                "reservation": present[one.pod_id],
                "advisory": advisory,
                "granted": granted,
                "cards": seen.has[key],
                "problem": seen.problems.get(key, ""),
                "seen_at": now,
            },
        )
