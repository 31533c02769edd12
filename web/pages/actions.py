"""Action buttons of a page; the confirmation dialog describes the consequences.

Only users with the permission see a button; the server checks the permission again. A button contains the REST URL, the
request body, the ETag of the displayed state (for If-Match) and a description of the consequences. This module encodes
the bodies as JSON, because they contain untrusted names.
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
from hetsched.contracts.documents import encode
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.facts import Maintenance
from hetsched.contracts.times import rfc3339
from hetsched.contracts.units import CPU, MEMORY
from hetsched.inventory.models import ClusterKind, Node
from hetsched.inventory.overrides import parts_in_maintenance
from hetsched.placement.actions.progress import RETRIED
from hetsched.placement.lifecycle import FINISHED, HOLDING, LABELS, UNPLACED, State
from hetsched.placement.models import Reservation, Workload
from hetsched.placement.scheduling_queue.node_backoffs import node_rejections
from web.api.nodes import facts
from web.api.nodes.nodes import etag as node_etag
from web.api.workloads.workloads import etag as workload_etag

from .amounts import amount_words

_NAMED = 4
SPANS = (("1h", timedelta(hours=1)), ("4h", timedelta(hours=4)), ("1d", timedelta(days=1)), ("7d", timedelta(days=7)))
MAINTAIN_FIELDS, OVERRIDE_FIELDS, PRIORITY_FIELDS = "until-fields", "override-fields", "priority-fields"


class ActionButton(msgspec.Struct, frozen=True):
    """Action button; its fields are the attributes that the dialog reads."""

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
    """Return the JSON body of a button."""
    return encode(asked).decode()


class PartButtons(msgspec.Struct, frozen=True):
    """The maintenance button of one GPU or zone, and its current maintenance, if any."""

    name: str
    act: ActionButton
    maintenance: Maintenance | None


class NodeButtons(msgspec.Struct, frozen=True):
    """The actions on a node, its GPUs and its zones; `spans` are the durations that the dialog offers."""

    node: list[ActionButton]
    cards: list[PartButtons]
    zones: list[PartButtons]
    reviews: dict[str, list[ActionButton]]
    overrides: list[tuple[Any, ActionButton | None]]
    override: ActionButton
    spans: list[tuple[str, int, str]]
    etag: str


def on_node(node: Node, reservations: Iterable[Reservation], subject: Subject) -> NodeButtons | None:
    """Return the actions that the user may run on a node, or None if there are none."""
    if not subject.may(Action.OPERATE):
        return None
    reservations = list(reservations)
    one = _OnNode(node, node_etag(node), reservations)
    row = facts.stated(node)
    maintained = {(at.part, at.name): at for at in parts_in_maintenance(row.overrides)} if row is not None else {}
    zones = node.report.numa.zones if node.report.numa is not None else ()
    return NodeButtons(
        node=[one.uncordon() if node.cordoned_by_operator else one.cordon(), *one.trust()],
        cards=[one.card(str(card.index), maintained.get(("card", str(card.index)))) for card in node.report.gpus or ()],
        zones=[one.zone(zone.name, maintained.get(("zone", zone.name))) for zone in zones],
        reviews={} if row is None else {at.id: one.review(at) for at in row.quarantined},
        overrides=[] if row is None else [(at, one.remove_override(at.fact)) for at in row.overrides],
        override=one.override(),
        spans=spans(),
        etag=one.etag,
    )


def spans() -> list[tuple[str, int, str]]:
    """Return the durations that a dialog offers, each with label, seconds, and the end of a period that starts now."""
    words = {"1h": _("1 hour"), "4h": _("4 hours"), "1d": _("1 day"), "7d": _("7 days")}
    now = timezone.now()
    return [(words[name], int(span.total_seconds()), rfc3339(now + span)) for name, span in SPANS]


class _OnNode:
    """Builder of the action buttons of one node."""

    def __init__(self, node: Node, etag: str, reservations: list[Reservation]) -> None:
        self.node = node
        self.etag = etag
        self.held = reservations
        self.url = f"/api/v1/nodes/{node.name}/actions/?{urlencode({'cluster': node.cluster.name})}"

    def _act(
        self, label: str, title: str, text: str, done: str, *, tone: str = "", more: str = "", **body: Any
    ) -> ActionButton:
        return ActionButton(label, self.url, title, text, label, body_of(body), self.etag, done, tone, more)

    def cordon(self) -> ActionButton:
        node, count = self.node, self.node.pods
        free = {name: node.allocatable.get(name, 0) - node.requested.get(name, 0) for name in (CPU, MEMORY)}
        stay = ngettext(
            "%(count)d pod runs on this node and is not evicted.",
            "%(count)d pods run on this node and are not evicted.",
            count,
        )
        text = [stay % {"count": count} if count else _("No pods run on this node.")]
        text.append(
            _(
                "The scheduler does not place new pods here until the node is uncordoned. %(cpu)s free CPUs and "
                "%(memory)s stay unused."
            )
            % {"cpu": amount_words(CPU, max(free[CPU], 0)), "memory": amount_words(MEMORY, max(free[MEMORY], 0))}
        )
        if node.cluster.kind == ClusterKind.KUBERNETES:
            text.append(_("Other schedulers of the cluster can still use the node."))
        title = _("Cordon %(node)s?") % {"node": node.name}
        done = _("%(node)s is cordoned.") % {"node": node.name}
        return self._act(_("Cordon"), title, " ".join(text), done, action="cordon")

    def uncordon(self) -> ActionButton:
        node = self.node
        text = _("The scheduler can place pods on this node again. It retries pending pods immediately.")
        if node.report.unschedulable:
            text = _(
                "The node is also marked unschedulable in the cluster. The scheduler does not place pods on this node "
                "until it is uncordoned in the cluster, too."
            )
        title = _("Uncordon %(node)s?") % {"node": node.name}
        return self._act(
            _("Uncordon"), title, text, _("%(node)s is uncordoned.") % {"node": node.name}, action="uncordon"
        )

    def trust(self) -> list[ActionButton]:
        """Return the button that makes hetsched use the facts again that the node's kubelet contradicted, as a list.

        The list is empty if no fact is contradicted and no pod rejection by the kubelet is in effect.
        """
        if not self.node.doubts and not node_rejections(self.node, timezone.now()):
            return []
        text = _(
            "hetsched accepts the facts of this node again. Pods that its kubelet rejected can be placed on this node "
            "again."
        )
        title = _("Trust %(node)s again?") % {"node": self.node.name}
        done = _("%(node)s is trusted again.") % {"node": self.node.name}
        return [self._act(_("Trust again"), title, text, done, action="trust")]

    def card(self, index: str, at: Maintenance | None) -> PartButtons:
        grants = [
            grant for reservation in self.held for grant in reservation.allocation.gpus if str(grant.index) == index
        ]
        names = {"part": _("GPU #%(index)s") % {"index": index}, "node": self.node.name}
        holders = self._holders(names, lambda held: any(str(grant.index) == index for grant in held.gpus))
        used = sum(grant.milli for grant in grants)
        left = ""
        if used < 1000:
            left = _("%(free)s ‰ of %(part)s is free and gets no new pods.") % {**names, "free": 1000 - used}
        return PartButtons(index, self._maintain(names, f"{holders} {left}".strip(), at, card=int(index)), at)

    def zone(self, name: str, at: Maintenance | None) -> PartButtons:
        names = {"part": _("zone %(zone)s") % {"zone": name}, "node": self.node.name}
        holders = self._holders(names, lambda held: any(grant.name == name for grant in held.zones))
        rest = _(
            "Pods without a zone requirement can still run on the CPUs of this zone. To exclude these pods too, "
            "cordon the node."
        )
        return PartButtons(name, self._maintain(names, f"{holders} {rest}", at, zone=name), at)

    def _maintain(self, names: dict[str, str], text: str, at: Maintenance | None, **part: Any) -> ActionButton:
        if at is not None:
            title = _("End the maintenance of %(part)s of %(node)s?") % names
            said = _("The scheduler can place pods on %(part)s again and retries pending pods immediately.") % names
            done = _("The maintenance of %(part)s of %(node)s has ended.") % names
            return self._act(_("End maintenance"), title, said, done, action="end-maintenance", **part)
        title = _("Start maintenance of %(part)s of %(node)s?") % names
        said = (
            _("The scheduler does not place new pods on %(part)s until the maintenance expires or an operator ends it.")
            % names
        )
        done = _("%(part)s of %(node)s is in maintenance.") % names
        label = _("Start maintenance…")
        act = self._act(label, title, f"{text} {said}", done, more=MAINTAIN_FIELDS, action="maintenance", **part)
        return msgspec.structs.replace(act, confirm=_("Start maintenance"))

    def _holders(self, names: dict[str, str], has: Any) -> str:
        pods = sorted(reservation.pod.key for reservation in self.held if has(reservation.allocation))
        if not pods:
            return _("No pods use %(part)s.") % names
        sentence = ngettext(
            "%(count)d pod uses %(part)s and is not evicted:",
            "%(count)d pods use %(part)s and are not evicted:",
            len(pods),
        )
        return f"{sentence % {**names, 'count': len(pods)}} {listed(pods)}."

    def review(self, at: Any) -> list[ActionButton]:
        fact = f"{at.fact} {at.item}".strip()
        names = {"fact": fact, "node": self.node.name, "known": at.known, "reported": at.reported}
        shrunk = at.change == "shrunk"
        label = _("Confirm removal") if shrunk else _("Approve")
        text = _("Known value: %(known)s. Reported value: %(reported)s.") % names
        follows = (
            _(
                "The missing capacity is removed permanently. The server rejects the removal while pods use this "
                "capacity."
            )
            if shrunk
            else _("The reported value takes effect now and is used for scheduling.")
        )
        title = _("%(fact)s of %(node)s") % names
        done = _("The decision on %(fact)s of %(node)s is saved.") % names
        found = [self._act(label, title, f"{text} {follows}", done, action="approve", fact=at.id)]
        if at.state == "open":
            label = _("Keep") if shrunk else _("Reject")
            follows = (
                _("The scheduler can use this capacity again, although no source reports it.")
                if shrunk
                else _("The previous value stays in effect until a new report replaces it.")
            )
            tone = "bad" if shrunk else ""
            found.append(self._act(label, title, f"{text} {follows}", done, tone=tone, action="reject", fact=at.id))
        return found

    def override(self) -> ActionButton:
        title = _("Override a fact of %(node)s?") % {"node": self.node.name}
        text = _("The override takes precedence over all other sources until it expires. Running pods are not moved.")
        act = self._act(
            _("Override fact…"), title, text, _("The override is active."), more=OVERRIDE_FIELDS, action="override"
        )
        return msgspec.structs.replace(act, confirm=_("Override"))

    def remove_override(self, fact: str) -> ActionButton:
        title = _("Remove the override of %(fact)s?") % {"fact": fact}
        text = _("The values reported by the node and other sources take effect immediately.")
        return self._act(
            _("Remove override"), title, text, _("The override was removed."), action="override", fact=fact
        )


def on_workload(workload: Workload, counts: dict[str, int], subject: Subject) -> list[ActionButton]:
    """Return the actions that the user may run on a workload; `counts` has the number of its pods in each state."""
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
            ActionButton(
                label, url, title % names, text, confirm, body_of({"action": action}), tag, done % names, **more
            )
        )

    if tried:
        said = ngettext(
            "The scheduler retries %(count)d rejected or failed pod immediately.",
            "The scheduler retries %(count)d rejected or failed pods immediately.",
            tried,
        )
        add(_("Retry"), _("Retry"), _("Retry %(name)s?"), said % {"count": tried},
            _("The scheduler retries %(name)s."), "retry")  # fmt: skip
    if waiting and subject.may(Action.OPERATE):
        said = ngettext(
            "The new priority applies to %(count)d pending pod. Placed pods stay on their nodes.",
            "The new priority applies to %(count)d pending pods. Placed pods stay on their nodes.",
            waiting,
        )
        now = _("The current priority is %(priority)d.") % {"priority": workload.priority}
        add(_("Set priority…"), _("Set priority"), _("Set the priority of %(name)s?"),
            f"{now} {said % {'count': waiting}}", _("The priority of %(name)s was changed."), "priority",
            more=PRIORITY_FIELDS)  # fmt: skip
    if unfinished and (not live or workload.objects_there.exists()):
        add(_("Cancel workload…"), _("Cancel workload"), _("Cancel %(name)s?"), _ended(workload, unfinished, live),
            _("%(name)s was cancelled."), "cancel", tone="bad")  # fmt: skip
    return found


def _ended(workload: Workload, unfinished: dict[str, int], live: bool) -> str:
    """Describe which pods a cancellation ends, and which resources it releases, as text for the dialog."""
    total = sum(unfinished.values())
    said = ngettext("%(count)d pod is cancelled: %(states)s.", "%(count)d pods are cancelled: %(states)s.", total)
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
        text.append(_("This releases %(amounts)s.") % {"amounts": ", ".join(amounts)})
    if live:
        text.append(_("hetsched deletes the objects of the workload from the cluster."))
    text.append(_("This cannot be undone."))
    return " ".join(text)


def _milli(allocation: Allocation | None) -> int:
    return sum(grant.milli for grant in allocation.gpus) if allocation is not None else 0


def listed(names: list[str]) -> str:
    """Return the first names and the number of the remaining names as text."""
    shown = ", ".join(names[:_NAMED])
    more = len(names) - _NAMED
    return shown if more <= 0 else _("%(names)s and %(more)d more") % {"names": shown, "more": more}
