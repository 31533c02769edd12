"""API tokens with role, scope and expiry; for administrators."""

from __future__ import annotations

from datetime import timedelta

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from hetsched.access.models import Token
from hetsched.access.roles import Action, Role
from hetsched.access.subject import subject_of
from hetsched.access.tokens import LIFETIME
from hetsched.inventory.models import Cluster

from ..actions import ActionButton
from ..lists.columns import Cell, Column
from ..lists.expressions import FilterField
from ..lists.kinds import Age, ChoiceKind, ValueKind
from ..lists.view import Listing, ListView
from ..shell import Shell, page

SOON = timedelta(days=7)
ROLES = {
    Role.VIEWER: gettext_lazy("has read-only access"),
    Role.SUBMITTER: gettext_lazy("submits and cancels workloads (for CI)"),
    Role.OPERATOR: gettext_lazy("manages nodes, clusters and workloads"),
    Role.POLICY_ADMIN: gettext_lazy("edits and activates policies"),
    Role.AGENT: gettext_lazy("reports facts of one node"),
}
_STATES = {"valid": gettext_lazy("valid"), "soon": gettext_lazy("expires soon"), "expired": gettext_lazy("expired")}
_TONES = {"valid": "good", "soon": "wait", "expired": "bad"}


def state(row: Token) -> str:
    """Return whether a token is valid, expires soon or has expired."""
    now = timezone.now()
    if row.expiry is None or row.expiry > now + SOON:
        return "valid"
    return "soon" if row.expiry > now else "expired"


def _shown(row: Token) -> str:
    return f"{row.token_key[:8]}…{row.ending}"


def _scope_text(row: Token) -> str:
    if row.node:
        return f"{row.cluster}/{row.node}"
    return ", ".join(row.namespaces)


def _bounds(row: Token) -> str:
    bounds = [f"{name}={amount}" for name, amount in row.quota.items()]
    if row.submits and row.priority_ceiling is not None:
        bounds.append(_("priority up to %(number)s") % {"number": row.priority_ceiling})
    if row.submits_per_minute is not None:
        bounds.append(_("%(number)s submissions per minute") % {"number": row.submits_per_minute})
    return ", ".join(bounds)


def _preempts(row: Token) -> str:
    """Describe which pods can be preempted by pods that are submitted with a token."""
    if not row.submits:
        return ""
    if row.priority_ceiling is None:
        return _("pods of lower priority in every namespace")
    return _("pods with a priority below %(number)s in every namespace") % {"number": row.priority_ceiling}


def _scope_cell(row: Token) -> Cell:
    return Cell(_scope_text(row)) if _scope_text(row) else Cell(_("all namespaces"), look="muted")


def _used_cell(row: Token) -> Cell:
    return Cell(row.last_used_at, look="time") if row.last_used_at else Cell(_("never"), look="muted")


def _act_cell(row: Token) -> Cell:
    names = {"name": row.name, "key": _shown(row)}
    act = ActionButton(
        label=_("Revoke…"),
        url=f"/api/v1/tokens/{row.token_key}/revoke/",
        title=_("Revoke %(name)s?") % names,
        text=_("The server rejects requests that use the token %(key)s from now on. This cannot be undone.") % names,
        confirm=_("Revoke"),
        body="{}",
        etag="",
        done=_("%(name)s was revoked.") % names,
        tone="bad",
    )
    return Cell(act, look="act")


COLUMNS = (
    Column("name", gettext_lazy("Name"), lambda row: row.name, order=("name",)),
    Column("token", gettext_lazy("Token"), _shown, lambda row: Cell(_shown(row), look="mono"), order=("token_key",)),
    Column(
        "state", gettext_lazy("State"), state,
        lambda row: Cell(_STATES[state(row)], look="chip", tone=_TONES[state(row)]), order=("expiry",),
    ),
    Column("role", gettext_lazy("Role"), lambda row: row.role, order=("role",)),
    Column("reach", gettext_lazy("Scope"), _scope_text, _scope_cell),
    Column("bounds", gettext_lazy("Limits"), _bounds, sortable=False),
    Column("preempts", gettext_lazy("May preempt"), _preempts, sortable=False),
    Column("owner", gettext_lazy("Owner"), lambda row: row.user.get_username(), order=("user__username",)),
    Column(
        "created", gettext_lazy("Created"), lambda row: row.created, lambda row: Cell(row.created, look="time"),
        order=("created",), falling=True,
    ),
    Column(
        "expires", gettext_lazy("Expires"), lambda row: row.expiry, lambda row: Cell(row.expiry, look="time"),
        order=("expiry",),
    ),
    Column(
        "used", gettext_lazy("Last used"), lambda row: row.last_used_at, _used_cell, order=("last_used_at",),
        falling=True,
    ),
)  # fmt: skip
_ACT = Column("act", gettext_lazy("Action"), lambda row: "", _act_cell, sortable=False)
FIELDS = (
    FilterField("name", ValueKind(), gettext_lazy("name; * is a wildcard"), path="name"),
    FilterField("role", ChoiceKind(*(role.value for role in Role)), gettext_lazy("role of the token"), path="role"),
    FilterField("owner", ValueKind(), gettext_lazy("account that owns the token"), path="user__username"),
    FilterField("node", ValueKind(), gettext_lazy("node that an agent token belongs to"), path="node"),
    FilterField(
        "cluster", ValueKind(), gettext_lazy("cluster of the node that an agent token belongs to"), path="cluster"
    ),
    FilterField("age", Age(), gettext_lazy("age of the token"), path="created"),
    FilterField("unused", Age(), gettext_lazy("time since the last use"), path="last_used_at"),
)


def _words(word: str) -> Q:
    return Q(name__text_contains=word) | Q(token_key__text_starts=word) | Q(node__text_contains=word)


LISTING = Listing(
    "tokens", FIELDS, COLUMNS, _words, stable=("-created", "token_key"), example="role=submitter  unused>7d"
)


@page("tokens")
def tokens(shell: Shell) -> HttpResponseBase:
    if not subject_of(shell.request).may(Action.ADMIN):
        raise PermissionDenied(
            _("Only administrators can manage tokens. Ask an administrator to create or revoke one.")
        )
    view = ListView(shell, LISTING)
    rows = Token.objects.select_related("user")
    if view.wanted_values:
        return view.answer_values(())
    if not view.format:
        view.columns = [*view.columns, _ACT]
    context = {
        "total": rows.count(),
        "roles": [(role.value, text) for role, text in ROLES.items()],
        "cluster_names": Cluster.objects.order_by("name").values_list("name", flat=True),
        "most_days": LIFETIME.days,
        "url": reverse("tokens"),
    }
    return view.show(view.ordered(view.filtered(rows)), "tokens", context)
