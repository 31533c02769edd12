"""Webhooks with their deliveries and attempts; for submitters."""

from __future__ import annotations

from typing import Any

import msgspec
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from hetsched.access.roles import Action
from hetsched.access.subject import Subject, subject_of
from hetsched.placement.actions.webhooks import NOTIFIED_STATES
from hetsched.placement.lifecycle import LABELS, State
from hetsched.placement.models import Delivery, Webhook
from hetsched.placement.notifications import deliveries
from hetsched.placement.notifications.callbacks import allowed_hosts
from web.api.webhooks import deliveries as delivery_reads
from web.api.webhooks import webhooks as hooks

from ..actions import ActionButton, body_of
from ..lists.columns import Cell, Column
from ..lists.expressions import FilterField
from ..lists.kinds import Age, ChoiceKind, ValueKind
from ..lists.view import Listing, ListView
from ..shell import Shell, page

_TONES = {Delivery.DUE: "wait", Delivery.DELIVERED: "good", Delivery.DEAD: "bad"}
_MOST_SHOWN = 10
_MOST_HOOKS = 200


def _answer(row: Delivery) -> str | None:
    """Return the result of the latest attempt: its status code or error code."""
    return str(row.status) if row.status is not None else row.code or None


def _workload_cell(row: Delivery) -> Cell:
    if not row.workload:
        return Cell(None)
    return Cell(row.workload, url=reverse("workload", args=[row.workload]), look="mono")


def redelivery_button(row: Delivery) -> ActionButton | None:
    """Return the button that repeats a delivery, or None while the delivery is in progress."""
    if row.state == Delivery.DUE:
        return None
    names = {"event": row.event, "host": row.host}
    return ActionButton(
        label=_("Deliver again…"),
        url=f"/api/v1/deliveries/{row.pk}/redeliver/",
        title=_("Deliver to %(host)s again?") % names,
        text=_("%(host)s receives the event %(event)s again, with the same ID and content but a new signature.")
        % names,
        confirm=_("Deliver again"),
        body="{}",
        etag=delivery_reads.tag(row),
        done=_("The delivery to %(host)s is queued.") % names,
    )


def _redeliver_cell(row: Delivery) -> Cell:
    act = redelivery_button(row)
    return Cell(act, look="act") if act is not None else Cell("", look="muted")


COLUMNS = (
    Column(
        "at", gettext_lazy("Time"), lambda row: row.created_at,
        lambda row: Cell(row.created_at, look="time", url=reverse("delivery", args=[row.pk])), order=("id",),
        falling=True,
    ),
    Column("event", gettext_lazy("Event"), lambda row: row.event,
           lambda row: Cell(row.event, look="mono", url=reverse("delivery", args=[row.pk])), order=("event",)),
    Column("workload", gettext_lazy("Workload"), lambda row: row.workload, _workload_cell, order=("workload",)),
    Column("to", gettext_lazy("To"), lambda row: row.host, lambda row: Cell(row.host, note=_hook_name(row)),
           order=("host",)),
    Column("state", gettext_lazy("State"), lambda row: row.state,
           lambda row: Cell(row.get_state_display(), look="chip", tone=_TONES[row.state]), order=("state",)),
    Column("attempts", gettext_lazy("Attempts"), lambda row: row.attempts, order=("attempts",), number=True),
    Column("answer", gettext_lazy("Last response"), _answer, lambda row: Cell(_answer(row), title=row.message),
           order=("status",)),
    Column("next", gettext_lazy("Next attempt"), lambda row: row.not_before if row.state == Delivery.DUE else None,
           lambda row: Cell(row.not_before, look="time") if row.state == Delivery.DUE else Cell(None)),
)  # fmt: skip
_ACT = Column("act", gettext_lazy("Action"), lambda row: "", _redeliver_cell, sortable=False)
FIELDS = (
    FilterField(
        "state",
        ChoiceKind(*(name for name, _label in Delivery.STATES)),
        gettext_lazy("state of the hold"),
        path="state",
    ),
    FilterField("event", ValueKind(), gettext_lazy("for example workload.failed; * is a wildcard"), path="event"),
    FilterField("workload", ValueKind(), gettext_lazy("ID of the workload"), path="workload"),
    FilterField("to", ValueKind(), gettext_lazy("receiving host"), path="host"),
    FilterField("webhook", ValueKind(), gettext_lazy("name of the webhook"), path="webhook__name"),
    FilterField("age", Age(), gettext_lazy("age of the entry"), path="created_at"),
)


def _hook_name(row: Delivery) -> str:
    return row.webhook.name if row.webhook is not None else _("callback URL of the submission")


def _words(word: str) -> Q:
    return Q(event__text_contains=word) | Q(host__text_contains=word) | Q(workload__text_starts=word)


LISTING = Listing(
    "deliveries", FIELDS, COLUMNS, _words, stable=("-id",), page_size=50, example="state=dead  age<24h"
)  # fmt: skip


@page("webhooks")
def webhooks(shell: Shell) -> HttpResponseBase:
    subject = _submitter(shell)
    view = ListView(shell, LISTING)
    if view.wanted_values:
        return view.answer_values(())
    rows = delivery_reads.visible(subject).select_related("webhook").defer("body")
    if not view.format:
        view.columns = [*view.columns, _ACT]
    context = {
        "hooks": [_shown(hook) for hook in hooks.visible(subject).select_related("cluster")[:_MOST_HOOKS]],
        "total": delivery_reads.visible(subject).count(),
        "states": [(state.value, LABELS[state]) for state in State if state in NOTIFIED_STATES],
        "cluster_names": [cluster.name for cluster in shell.clusters],
        "url": reverse("webhooks"),
        "most_attempts": deliveries.MOST_ATTEMPTS,
        "allowed": bool(allowed_hosts()),
    }
    return view.show(view.ordered(view.filtered(rows)), "webhooks", context)


@page("webhooks")
def delivery(shell: Shell, pk: str) -> HttpResponseBase:
    row = delivery_reads.visible(_submitter(shell)).select_related("webhook").filter(pk=pk).first()
    if row is None:
        raise Http404(_("Delivery %(id)s does not exist.") % {"id": pk})
    body = msgspec.json.format(row.body.encode(), indent=2).decode()
    log = row.log.order_by("-id")[: delivery_reads.MOST_SHOWN_ATTEMPTS]
    context = {"row": row, "tone": _TONES[row.state], "body": body, "log": log, "again": redelivery_button(row)}
    return shell.render("delivery", {**context, "to": _hook_name(row)})


def of_workload(workload_id: str, subject: Subject) -> list[tuple[Delivery, str, ActionButton | None]]:
    """Return the deliveries of a workload that the user may see, the latest first."""
    if not subject.may(Action.SUBMIT):
        return []
    rows = delivery_reads.visible(subject).filter(workload=workload_id).select_related("webhook").defer("body")
    return [(row, _TONES[row.state], redelivery_button(row)) for row in rows.order_by("-id")[:_MOST_SHOWN]]


def _submitter(shell: Shell) -> Subject:
    subject = subject_of(shell.request)
    if not subject.may(Action.SUBMIT):
        raise PermissionDenied(_("Webhooks need the role submitter. Ask an administrator for this role."))
    return subject


def _shown(hook: Webhook) -> dict[str, Any]:
    """Return the template context of a webhook, with the request bodies of its pause and resume buttons."""
    same = {
        "name": hook.name,
        "url": hook.url,
        "cluster": hook.cluster.name if hook.cluster is not None else "",
        "namespaces": hook.namespaces,
        "states": hook.states,
    }
    return {
        "hook": hook,
        "tag": hooks.tag(hook),
        "pause": body_of({**same, "enabled": False}),
        "resume": body_of({**same, "enabled": True}),
        "states": ", ".join(str(LABELS[State(state)]) for state in hook.states),
        "namespaces": ", ".join(hook.namespaces),
    }
