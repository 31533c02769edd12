"""The queue page: pending pods with their position, state and next attempt.

The counts are the same as on the fleet page. Pods that never fit are retried when the cluster changes; they are
nevertheless counted separately and have a separate tab.
"""

from __future__ import annotations

from typing import Any

from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from hetsched.contracts.waits import describe_waits
from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.models import Connection
from hetsched.placement.lifecycle import State
from hetsched.placement.queries.pending_order import QueueEntry, QueueState, list_queue, queue_states
from web.translation import translate

from ..lists.columns import Cell, Column
from ..lists.expressions import FilterField
from ..lists.kinds import Age, ChoiceKind, NumberKind, ValueKind
from ..lists.view import Listing, ListView
from ..row_selection import pickable
from ..script_texts import state_texts
from ..shell import Shell, page

# Maximum number of listed pods; the page shows how many others there are, and the workload list shows all.
MOST_LISTED = 1000
_TONES = {QueueState.DUE: "info", QueueState.BACK_OFF: "wait", QueueState.IMAGES: "wait", QueueState.GATED: "wait"}
LABELS = {
    QueueState.DUE: pgettext_lazy("of the queue", "active"),
    QueueState.BACK_OFF: gettext_lazy("backing off"),
    QueueState.IMAGES: gettext_lazy("reading images"),
    QueueState.RESTING: gettext_lazy("unschedulable"),
    QueueState.GATED: gettext_lazy("gated"),
}
# The tab of pods that never fit; each other tab shows one queue state.
NEVER = "never-fits"
NEVER_FITS = gettext_lazy("never fits")


def waits(entry: QueueEntry) -> str:
    """Describe the event that a pod waits for."""
    if entry.queue_state is QueueState.DUE:
        return (
            _("the next scheduling attempt")
            if not entry.attempts
            else describe_waits(entry.waits_for) or _("the next scheduling attempt")
        )
    if entry.queue_state is QueueState.IMAGES:
        return _("the platforms of the pod's images, which hetsched is reading")
    if entry.queue_state is QueueState.GATED:
        return entry.message or _("removal of the pod's scheduling gates")
    return describe_waits(entry.waits_for) or _("a change in the cluster")


def _pod_cell(entry: QueueEntry) -> Cell:
    if entry.workload_id is None:
        return Cell(entry.key)
    return Cell(entry.key, url=f"{reverse('workload', args=[entry.workload_id])}?{urlencode({'pod': entry.key})}")


def _state_cell(entry: QueueEntry) -> Cell:
    if entry.state == State.NEVER_FITS:
        return Cell(NEVER_FITS, look="chip", tone="bad", title=str(LABELS[entry.queue_state]))
    return Cell(
        LABELS[entry.queue_state], look="chip", tone=_TONES.get(entry.queue_state, ""), title=state_texts()[entry.state]
    )


def _waits_cell(entry: QueueEntry) -> Cell:
    url = reverse("decision", args=[entry.decision_id]) if entry.decision_id else ""
    return Cell(translate(waits(entry)), url=url, look="text")


def _retry_cell(entry: QueueEntry) -> Cell:
    if entry.queue_state is QueueState.DUE:
        return Cell(_("in one of the next batches"), look="muted")
    if entry.state == State.NEVER_FITS:
        return Cell(_("when the cluster changes"), look="muted")
    if entry.again_at is None:
        return Cell(_("after this event"), look="muted")
    return Cell(entry.again_at, look="time", note=_("at the latest") if entry.queue_state is QueueState.RESTING else "")


def _policy_cell(entry: QueueEntry) -> Cell:
    return Cell(entry.policy or _("default"), look="" if entry.policy else "muted", title=entry.policy_rule)


def _time(name: str) -> Any:
    def cell(entry: QueueEntry) -> Cell:
        return Cell(getattr(entry, name), look="time")

    return cell


COLUMNS = (
    Column("position", gettext_lazy("Position"), lambda entry: entry.position, number=True),
    Column("pod", gettext_lazy("Pod"), lambda entry: entry.key, _pod_cell),
    Column("standing", gettext_lazy("Queue state"), lambda entry: entry.queue_state.value, _state_cell),
    Column("waits-for", gettext_lazy("Waits for"), waits, _waits_cell, sortable=False),
    Column("again", gettext_lazy("Next attempt"), lambda entry: entry.again_at, _retry_cell),
    Column("attempts", gettext_lazy("Attempts"), lambda entry: entry.attempts, number=True, falling=True),
    Column("tried", gettext_lazy("Last attempt"), lambda entry: entry.tried_at, _time("tried_at"), shown=False),
    Column("since", gettext_lazy("Pending since"), lambda entry: entry.created_at, _time("created_at")),
    Column("priority", gettext_lazy("Priority"), lambda entry: entry.priority, number=True, falling=True),
    Column("policy", gettext_lazy("Policy"), lambda entry: entry.policy, _policy_cell),
    Column("gang", gettext_lazy("Gang"), lambda entry: entry.gang),
    Column("namespace", gettext_lazy("Namespace"), lambda entry: entry.namespace, shown=False),
    Column("workload", gettext_lazy("Workload"), lambda entry: entry.workload_id, shown=False),
)  # fmt: skip
FIELDS = (
    FilterField("pod", ValueKind(), gettext_lazy("namespace/name; * is a wildcard"), lambda entry: entry.key),
    FilterField(
        "namespace", ValueKind(), gettext_lazy("namespace of the pod"), lambda entry: entry.namespace, found=True
    ),
    FilterField(
        "policy", ValueKind(), gettext_lazy("policy that schedules the pod"), lambda entry: entry.policy, found=True
    ),
    FilterField("gang", ValueKind(), gettext_lazy("gang of the pod"), lambda entry: entry.gang, found=True),
    FilterField(
        "priority", NumberKind(), gettext_lazy("higher values are scheduled first"), lambda entry: entry.priority
    ),
    FilterField("tries", NumberKind(), gettext_lazy("number of attempts"), lambda entry: entry.attempts),
    FilterField("place", NumberKind(), gettext_lazy("position in the queue; 1 is next"), lambda entry: entry.position),
    FilterField(
        "state", ChoiceKind("pending", "not-now", "never-fits"), gettext_lazy("result of the last attempt"),
        lambda entry: entry.state,
    ),
    FilterField("age", Age(), gettext_lazy("pending time"), lambda entry: entry.created_at),
)  # fmt: skip
LISTING = Listing(
    "queue", FIELDS, COLUMNS, lambda item: f"{item.key} {item.policy} {item.gang or ''} {waits(item)}".lower(),
    example="namespace=ci  tries>3  age>1h",
)  # fmt: skip


@page("queue")
def queue(shell: Shell) -> HttpResponseBase:
    if shell.cluster is None:
        return shell.render("queue", {})
    wanted = shell.text("standing")
    only = QueueState(wanted) if wanted in set(QueueState) else None
    here = NEVER if wanted == NEVER else only or ""
    view = ListView(shell, LISTING, standing=here)
    shell.follow(cluster_topic(shell.cluster))
    rows = list_queue(shell.cluster.pk, MOST_LISTED, only=only, never=here == NEVER if here else None)
    if view.wanted_values:
        return view.answer_values(str(getattr(entry, view.wanted_values, "") or "") for entry in rows)
    counts, never = queue_states(shell.cluster.pk)
    waiting = sum(counts.values())
    tabs = [
        ("", _("all"), waiting + never),
        *((queue_state.value, LABELS[queue_state], count) for queue_state, count in counts.items()),
        (NEVER, NEVER_FITS, never),
    ]
    context = {
        "waiting": waiting,
        "never": never,
        "listed": len(rows),
        "due": counts[QueueState.DUE],
        "more": len(rows) >= MOST_LISTED,
        "filtered": bool(view.query or here),
        "offers": pickable(view, "retry", "priority", "cancel"),
        "shadow_followed": Connection.objects.filter(cluster=shell.cluster).exclude(shadow_of="").exists(),
        "tabs": [
            {"label": label, "count": count, "url": view.url(standing=name), "current": name == here}
            for name, label, count in tabs
        ],
    }
    return view.show(view.kept(rows), "queue", context)
