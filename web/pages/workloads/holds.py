"""Holds: capacity reserved for pods that are not submitted yet, with owner, expiry and nodes."""

from __future__ import annotations

from functools import partial

from django.conf import settings
from django.db.models import Count, Q
from django.http import Http404
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from hetsched.access.roles import Action
from hetsched.access.subject import Subject, subject_of
from hetsched.inventory.actions import cluster_topic
from hetsched.placement.models import Hold, Pod, Reservation
from hetsched.placement.models.holds import CAME
from web.api import request_scope
from web.api.workloads import holds as api
from web.translation import translate

from ..actions import ActionButton, body_of
from ..amounts import duration
from ..lists.columns import Cell, Column
from ..lists.expressions import FilterField
from ..lists.kinds import Age, ChoiceKind, ValueKind
from ..lists.view import Listing, ListView
from ..nodes.holders import reservation_row
from ..shell import Shell, page

MOST_PODS_SHOWN = 200
_SPANS = (600, 1800, 3600, 4 * 3600, 86_400, 7 * 86_400)  # durations to choose from, in seconds
LABELS = {
    Hold.HELD: pgettext_lazy("of a hold", "held"),
    Hold.CLAIMED: pgettext_lazy("of a hold", "claimed"),
    Hold.USED: pgettext_lazy("of a hold", "used"),
    Hold.EXPIRED: pgettext_lazy("of a hold", "expired"),
    Hold.CANCELLED: pgettext_lazy("of a hold", "cancelled"),
    Hold.LOST: pgettext_lazy("of a hold", "lost"),
}
_TONES = {Hold.HELD: "info", Hold.CLAIMED: "info", Hold.USED: "good", Hold.LOST: "bad"}
TABS = {
    "": pgettext_lazy("of holds", "open"),
    "over": pgettext_lazy("of holds", "ended"),
    "all": gettext_lazy("all"),
}


def _url(row: Hold) -> str:
    return reverse("hold", args=[row.pk])


def _state_cell(row: Hold) -> Cell:
    return Cell(LABELS[row.state], look="chip", tone=_TONES.get(row.state, ""), title=translate(row.end_reason))


def _until_cell(row: Hold) -> Cell:
    return Cell(row.expires_at, look="time") if row.state in Hold.OPEN else Cell(None)


def _workload_cell(row: Hold) -> Cell:
    if row.workload_id is None:
        return Cell(None)
    return Cell(row.workload_id, url=reverse("workload", args=[row.workload_id]), look="mono")


COLUMNS = (
    Column("id", gettext_lazy("Hold"), lambda row: row.pk, lambda row: Cell(row.pk, url=_url(row), look="mono"),
           order=("id",), falling=True),
    Column("state", gettext_lazy("State"), lambda row: row.state, _state_cell, order=("state",)),
    Column("note", gettext_lazy("Note"), lambda row: row.note or None,
           lambda row: Cell(row.note or None, look="text")),
    Column("pods", gettext_lazy("Pods"), lambda row: row.pod_count, order=("pod_count",), number=True, falling=True),
    Column("namespace", gettext_lazy("Namespace"), lambda row: row.namespace or None, order=("namespace",)),
    Column("by", gettext_lazy("Held by"), lambda row: row.held_by, order=("held_by",)),
    Column("until", gettext_lazy("Until"), lambda row: row.expires_at if row.state in Hold.OPEN else None, _until_cell,
           order=("expires_at",)),
    Column("workload", gettext_lazy("Claimed by"), lambda row: row.workload_id, _workload_cell, order=("workload",)),
    Column("since", gettext_lazy("Since"), lambda row: row.created_at, lambda row: Cell(row.created_at, look="time"),
           order=("id",), falling=True),
    Column("ended", gettext_lazy("Ended"), lambda row: row.ended_at,
           lambda row: Cell(row.ended_at, look="time" if row.ended_at else ""), order=("ended_at",), falling=True),
    Column("policy", gettext_lazy("Policy"), lambda row: row.policy_name, order=("policy_name",), shown=False),
)  # fmt: skip
FIELDS = (
    FilterField("state", ChoiceKind(*Hold.STATES), gettext_lazy("state of the hold"), path="state"),
    FilterField("note", ValueKind(), gettext_lazy("note; * is a wildcard"), path="note"),
    FilterField("namespace", ValueKind(), gettext_lazy("namespace of the pods"), path="namespace"),
    FilterField("by", ValueKind(), gettext_lazy("owner of the hold"), path="held_by"),
    FilterField("workload", ValueKind(), gettext_lazy("ID of the workload that claimed the hold"), path="workload_id"),
    FilterField("policy", ValueKind(), gettext_lazy("policy of the decision"), path="policy_name"),
    FilterField("age", Age(), gettext_lazy("age of the hold"), path="created_at"),
)


def _words(word: str) -> Q:
    return (
        Q(note__text_contains=word)
        | Q(held_by__text_contains=word)
        | Q(namespace__text_contains=word)
        | Q(id__text_starts=word)
    )


LISTING = Listing("holds", FIELDS, COLUMNS, _words, stable=("-id",), example="by=ada  namespace=ci  age<1h")


@page("holds")
def holds(shell: Shell) -> HttpResponseBase:
    if shell.cluster is None:
        return shell.render("holds", {})
    wanted = shell.text("show")
    tab = wanted if wanted in TABS else ""
    view = ListView(shell, LISTING, show=tab)
    if view.wanted_values:
        return view.answer_values(())
    shell.follow(cluster_topic(shell.cluster))
    rows = request_scope.holds(subject_of(shell.request)).filter(cluster=shell.cluster)
    counts = rows.aggregate(all=Count("id"), open=Count("id", filter=Q(state__in=Hold.OPEN)))
    counted = {"": counts["open"], "over": counts["all"] - counts["open"], "all": counts["all"]}
    if tab == "over":
        rows = rows.exclude(state__in=Hold.OPEN)
    elif not tab:
        rows = rows.filter(state__in=Hold.OPEN)
    context = {
        "open": counts["open"],
        "tabs": [
            {"label": label, "count": counted[name], "url": view.url(show=name), "current": name == tab}
            for name, label in TABS.items()
        ],
    }
    return view.show(view.ordered(view.filtered(rows)), "holds", context)


@page("holds")
def hold(shell: Shell, pk: str) -> HttpResponseBase:
    subject = subject_of(shell.request)
    seen = request_scope.holds(subject).select_related("cluster")
    row = seen.filter(pk=pk).first()
    if row is None:
        raise Http404(_("Hold %(id)s does not exist.") % {"id": pk})
    shell.select_cluster(row.cluster)
    shell.follow(cluster_topic(row.cluster))
    row = seen.get(pk=pk)  # read again, so that the row is not older than the topic's revision in the page
    reservations = Reservation.objects.filter(pod__hold=row, pod__origin=Pod.HELD).select_related("pod", "node")
    shown = reservations.defer("pod__spec", "node__report").order_by("id")[:MOST_PODS_SHOWN]
    return shell.render(
        "hold",
        {
            "hold": row,
            "label": LABELS[row.state],
            "tone": _TONES.get(row.state, ""),
            "reservations": [
                {
                    **reservation_row(reservation),
                    "node": reservation.node.name,
                    "kept": reservation.active,
                    "given": reservation.release_reason == CAME,
                }
                for reservation in shown
            ],
            "more": max(0, row.pod_count - MOST_PODS_SHOWN),
            "acts": on_hold(row, subject),
            "spans": spans(),
        },
    )


def on_hold(row: Hold, subject: Subject) -> list[ActionButton]:
    """Return the actions that the user may run on a hold; there are none once it is claimed or has ended."""
    if row.state != Hold.HELD or not (subject.may(Action.SUBMIT) and request_scope.may_change_hold(subject, row)):
        return []
    act = partial(ActionButton, url=f"/api/v1/holds/{row.pk}/actions/", etag=api.tag(row))
    return [
        act(
            label=_("Extend…"),
            title=_("Extend this hold?"),
            text=_(
                "The hold expires after the selected duration, counted from now. The scheduler does not place other "
                "pods on this capacity until then."
            ),
            confirm=_("Extend"),
            body=body_of({"action": "extend"}),
            done=_("The hold was extended."),
            more="extend-fields",
        ),
        act(
            label=_("Cancel hold…"),
            title=_("Cancel this hold?"),
            text=_("The capacity is released immediately. The server then rejects submissions that name this hold."),
            confirm=_("Cancel hold"),
            body=body_of({"action": "cancel"}),
            done=_("The hold was cancelled."),
            tone="bad",
        ),
    ]


def spans() -> list[tuple[str, int]]:
    """Return the durations to choose from, up to the limit, as label and seconds."""
    most = settings.HETSCHED_LONGEST_HOLD_SECONDS
    return [(duration(seconds), seconds) for seconds in [span for span in _SPANS if span <= most] or [most]]
