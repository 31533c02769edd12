"""What a person may do to what a page shows, each as a button that says beforehand what will follow.

Rule: buttons are for those who may press them; the server asks again. Each carries the address of REST, the body, the
tag of what was shown (If-Match) and, in words, what stays, what ends and what becomes free. Bodies are JSON made here,
since names from outside stand in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.contracts.allocation import Allocation
from hetsched.contracts.times import rfc3339
from hetsched.contracts.units import CPU, MEMORY
from hetsched.inventory.maintenance import Maintenance, in_maintenance
from hetsched.inventory.models import ClusterKind, Node
from hetsched.placement.actions.progress import RETRIED
from hetsched.placement.backoffs import kept_off
from hetsched.placement.lifecycle import FINISHED, HOLDING, LABELS, UNPLACED, State
from hetsched.placement.models import Reservation, Workload
from web.api import facts
from web.api.nodes import etag as node_etag
from web.api.workloads import etag as workload_etag

from .amounts import amount_words

_NAMED = 4
SPANS = (("1h", timedelta(hours=1)), ("4h", timedelta(hours=4)), ("1d", timedelta(days=1)), ("7d", timedelta(days=7)))
MAINTAIN_FIELDS, OVERRIDE_FIELDS, PRIORITY_FIELDS = "until-fields", "override-fields", "priority-fields"


class Act(msgspec.Struct, frozen=True):
    """One button; the fields are the attributes that the dialog reads."""

    label: str
    url: str
    title: str
    text: str
    confirm: str
    body: str
    etag: str
    done: str
    tone: str = ""
    more: str = ""


def body_of(asked: dict[str, Any]) -> str:
    """Return the body of a button that asks for this."""
    return msgspec.json.encode(asked).decode()


class PartActs(msgspec.Struct, frozen=True):
    """What may be done to one card or zone, and its maintenance where it is in one."""

    name: str
    act: Act
    maintenance: Maintenance | None


class NodeActs(msgspec.Struct, frozen=True):
    """What may be done to a node and its parts; `spans` are the choices of how long."""

    node: list[Act]
    cards: list[PartActs]
    zones: list[PartActs]
    rulings: dict[str, list[Act]]
    overrides: list[tuple[Any, Act | None]]
    override: Act
    spans: list[tuple[str, int, str]]
    etag: str


def on_node(node: Node, held: Iterable[Reservation], subject: Subject) -> NodeActs | None:
    """Return what this person may do to a node; None where that is nothing."""
    if not subject.may(Action.OPERATE):
        return None
    held = list(held)
    one = _OnNode(node, node_etag(node), held)
    row = facts.stated(node)
    maintained = {(at.part, at.name): at for at in in_maintenance(row.overrides)} if row is not None else {}
    zones = node.report.numa.zones if node.report.numa is not None else ()
    return NodeActs(
        node=[one.uncordon() if node.cordoned_by_operator else one.cordon(), *one.trust()],
        cards=[one.card(str(card.index), maintained.get(("card", str(card.index)))) for card in node.report.gpus or ()],
        zones=[one.zone(zone.name, maintained.get(("zone", zone.name))) for zone in zones],
        rulings={} if row is None else {at.id: one.rule(at) for at in row.quarantined},
        overrides=[] if row is None else [(at, one.take_back(at.fact)) for at in row.overrides],
        override=one.override(),
        spans=spans(),
        etag=one.etag,
    )


def spans() -> list[tuple[str, int, str]]:
    """Return the choices of how long something lasts: words, seconds, and the moment when it would be over by now."""
    words = {"1h": _("1 hour"), "4h": _("4 hours"), "1d": _("1 day"), "7d": _("7 days")}
    now = timezone.now()
    return [(words[name], int(span.total_seconds()), rfc3339(now + span)) for name, span in SPANS]


class _OnNode:
    """The buttons of one node."""

    def __init__(self, node: Node, etag: str, held: list[Reservation]) -> None:
        self.node = node
        self.etag = etag
        self.held = held
        self.url = f"/api/v1/nodes/{node.name}/actions/?{urlencode({'cluster': node.cluster.name})}"

    def _act(self, label: str, title: str, text: str, done: str, *, tone: str = "", more: str = "", **body: Any) -> Act:
        return Act(label, self.url, title, text, label, body_of(body), self.etag, done, tone, more)

    def cordon(self) -> Act:
        node, count = self.node, self.node.pods
        free = {name: node.allocatable.get(name, 0) - node.requested.get(name, 0) for name in (CPU, MEMORY)}
        stay = ngettext("%(count)d pod runs here and stays.", "%(count)d pods run here and stay.", count)
        text = [stay % {"count": count} if count else _("Nothing runs here.")]
        text.append(
            _("Nothing new is placed here until it is uncordoned; %(cpu)s free CPUs and %(memory)s stay unused.")
            % {"cpu": amount_words(CPU, max(free[CPU], 0)), "memory": amount_words(MEMORY, max(free[MEMORY], 0))}
        )
        if node.cluster.kind == ClusterKind.KUBERNETES:
            text.append(_("Other schedulers of the cluster are not told."))
        title = _("Cordon %(node)s?") % {"node": node.name}
        done = _("%(node)s is cordoned.") % {"node": node.name}
        return self._act(_("Cordon"), title, " ".join(text), done, action="cordon")

    def uncordon(self) -> Act:
        node = self.node
        text = _("Pods may be placed here again; those that wait for room are tried at once.")
        if node.report.unschedulable:
            text = _("The cluster itself marks it unschedulable: nothing is placed here until that ends, too.")
        title = _("Uncordon %(node)s?") % {"node": node.name}
        return self._act(
            _("Uncordon"), title, text, _("%(node)s is uncordoned.") % {"node": node.name}, action="uncordon"
        )

    def trust(self) -> list[Act]:
        """Return the button by which what its kubelet contradicted is believed again, where there is something."""
        if not self.node.doubts and not kept_off(self.node, timezone.now()):
            return []
        text = _("Its facts are in doubt no more, and pods that keep off it after refusals are tried here again.")
        title = _("Trust %(node)s again?") % {"node": self.node.name}
        done = _("%(node)s is trusted again.") % {"node": self.node.name}
        return [self._act(_("Trust again"), title, text, done, action="trust")]

    def card(self, index: str, at: Maintenance | None) -> PartActs:
        grants = [grant for one in self.held for grant in one.allocation.gpus if str(grant.index) == index]
        names = {"part": _("card #%(index)s") % {"index": index}, "node": self.node.name}
        holders = self._holders(lambda held: any(str(grant.index) == index for grant in held.gpus))
        used = sum(grant.milli for grant in grants)
        left = _("%(free)s ‰ of it are free and stay unused.") % {"free": 1000 - used} if used < 1000 else ""
        return PartActs(index, self._maintain(names, f"{holders} {left}".strip(), at, card=int(index)), at)

    def zone(self, name: str, at: Maintenance | None) -> PartActs:
        names = {"part": _("zone %(zone)s") % {"zone": name}, "node": self.node.name}
        holders = self._holders(lambda held: any(grant.name == name for grant in held.zones))
        rest = _("Pods that ask for no zone may still run on its CPUs; cordon the node to keep these off, too.")
        return PartActs(name, self._maintain(names, f"{holders} {rest}", at, zone=name), at)

    def _maintain(self, names: dict[str, str], text: str, at: Maintenance | None, **part: Any) -> Act:
        if at is not None:
            title = _("End the maintenance of %(part)s of %(node)s?") % names
            said = _("Pods may be placed on it again; those that wait for it are tried at once.")
            done = _("The maintenance of %(part)s of %(node)s is over.") % names
            return self._act(_("End maintenance"), title, said, done, action="end-maintenance", **part)
        title = _("Maintenance of %(part)s of %(node)s?") % names
        said = _("Nothing new is placed on it until then, or until somebody ends the maintenance.")
        done = _("%(part)s of %(node)s is in maintenance.") % names
        label = _("Maintenance…")
        act = self._act(label, title, f"{text} {said}", done, more=MAINTAIN_FIELDS, action="maintenance", **part)
        return msgspec.structs.replace(act, confirm=_("Begin maintenance"))

    def _holders(self, has: Any) -> str:
        names = sorted(one.pod.key for one in self.held if has(one.allocation))
        if not names:
            return _("Nobody holds it.")
        said = ngettext("%(count)d pod holds it and keeps it:", "%(count)d pods hold it and keep it:", len(names))
        return f"{said % {'count': len(names)}} {_listed(names)}."

    def rule(self, at: Any) -> list[Act]:
        names = {"fact": f"{at.fact} {at.item}".strip(), "node": self.node.name, "known": at.known, "told": at.told}
        shrunk = at.change == "shrunk"
        label = _("It is gone") if shrunk else _("Let it count")
        text = _("Known so far: %(known)s. Told now: %(told)s.") % names
        follows = (
            _("What is missing is gone for good; that is refused while pods hold something of it.")
            if shrunk
            else _("What is told counts from now on, and pods may be placed on it.")
        )
        title = _("%(fact)s of %(node)s") % names
        done = _("Ruled on %(fact)s of %(node)s.") % names
        found = [self._act(label, title, f"{text} {follows}", done, action="approve", fact=at.id)]
        if at.state == "open":
            label = _("It is still there") if shrunk else _("Reject")
            follows = (
                _("It takes pods again, although it is not reported.")
                if shrunk
                else _("What was known counts on, until something else is told.")
            )
            tone = "bad" if shrunk else ""
            found.append(self._act(label, title, f"{text} {follows}", done, tone=tone, action="reject", fact=at.id))
        return found

    def override(self) -> Act:
        title = _("State a fact of %(node)s otherwise?") % {"node": self.node.name}
        text = _("It counts before what anybody else says, until then. What runs stays where it is.")
        act = self._act(
            _("Override a fact…"), title, text, _("The fact is overridden."), more=OVERRIDE_FIELDS, action="override"
        )
        return msgspec.structs.replace(act, confirm=_("Override"))

    def take_back(self, fact: str) -> Act:
        title = _("Take back what is stated of %(fact)s?") % {"fact": fact}
        text = _("What the node and other sources say counts again, at once.")
        return self._act(_("Take back"), title, text, _("The override is taken back."), action="override", fact=fact)


def on_workload(workload: Workload, counts: dict[str, int], subject: Subject) -> list[Act]:
    """Return what this person may do to a workload; `counts` are its pods by state."""
    if not subject.may(Action.SUBMIT):
        return []
    live = workload.cluster.kind == ClusterKind.KUBERNETES
    tried = sum(counts.get(state, 0) for state in (RETRIED - {State.FAILED} if live else RETRIED))
    waiting = sum(counts.get(state, 0) for state in (State.PENDING, *UNPLACED))
    unfinished = {state: count for state, count in counts.items() if state not in FINISHED}
    url = f"/api/v1/workloads/{workload.pk}/actions/"
    tag = workload_etag(workload) if tried or waiting or unfinished else ""
    names = {"name": "/".join(part for part in (workload.namespace, workload.name) if part)}
    found = []

    def add(label: str, confirm: str, title: str, text: str, done: str, action: str, **more: str) -> None:
        found.append(
            Act(label, url, title % names, text, confirm, body_of({"action": action}), tag, done % names, **more)
        )

    if tried:
        said = ngettext(
            "%(count)d pod that was refused or failed is decided anew, at once.",
            "%(count)d pods that were refused or failed are decided anew, at once.",
            tried,
        )
        add(_("Try again"), _("Try again"), _("Try %(name)s again?"), said % {"count": tried},
            _("%(name)s is being tried again."), "retry")  # fmt: skip
    if waiting and subject.may(Action.OPERATE):
        said = ngettext(
            "%(count)d pod that waits gets it; what is placed keeps its place.",
            "%(count)d pods that wait get it; what is placed keeps its place.",
            waiting,
        )
        now = _("The priority is %(priority)d now.") % {"priority": workload.priority}
        add(_("Set priority…"), _("Set priority"), _("Another priority for %(name)s?"),
            f"{now} {said % {'count': waiting}}", _("%(name)s has another priority."), "priority",
            more=PRIORITY_FIELDS)  # fmt: skip
    if unfinished and (not live or workload.objects_there.exists()):
        add(_("Cancel workload…"), _("Cancel workload"), _("Cancel %(name)s?"), _ended(workload, unfinished, live),
            _("%(name)s is cancelled."), "cancel", tone="bad")  # fmt: skip
    return found


def _ended(workload: Workload, unfinished: dict[str, int], live: bool) -> str:
    """Say what a cancellation ends, and what becomes free."""
    total = sum(unfinished.values())
    said = ngettext("%(count)d pod ends: %(states)s.", "%(count)d pods end: %(states)s.", total)
    states = ", ".join(f"{count} {LABELS[State(state)]}" for state, count in sorted(unfinished.items()))
    text = [said % {"count": total, "states": states}]
    if any(State(state) in HOLDING for state in unfinished):
        rows = Reservation.objects.filter(pod__workload=workload, active=True).values_list("requests", "allocation")
        freed: Counter[str] = Counter()
        cards = 0
        for requests, allocation in rows:
            freed.update(requests)
            cards += _milli(allocation)
        amounts = [
            _("%(cpu)s CPUs") % {"cpu": amount_words(CPU, freed[CPU])},
            amount_words(MEMORY, freed[MEMORY]),
            *([_("%(cards)s GPU") % {"cards": f"{cards / 1000:g}"}] if cards else []),
        ]
        text.append(_("That frees %(amounts)s.") % {"amounts": ", ".join(amounts)})
    if live:
        text.append(_("Its objects are deleted from the cluster."))
    text.append(_("This cannot be taken back."))
    return " ".join(text)


def _milli(allocation: Allocation | None) -> int:
    return sum(grant.milli for grant in allocation.gpus) if allocation is not None else 0


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    more = len(names) - _NAMED
    return shown if more <= 0 else _("%(names)s and %(more)d more") % {"names": shown, "more": more}
