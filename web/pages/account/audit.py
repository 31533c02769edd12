"""The audit log: actor, action, object, time and reason of each entry, and the verification of the seals.

Actions such as `node.cordon`, roles of users and names are codes and are not translated, because filters use them.
Object kinds, names of details and hetsched's own sentences are stored in English and translated for display. The
message catalogue contains them under the contexts `kind`, `role` and `detail`; a text without an entry is shown
unchanged.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy, pgettext

from hetsched.access.subject import subject_of
from hetsched.contracts.documents import encode
from hetsched.journal.audit import details_of
from hetsched.journal.chain import SETTLED, chain_state
from hetsched.journal.models import AuditEntry
from web.api.account.audit import visible
from web.translation import translate

from ..lists.columns import Cell, Column
from ..lists.expressions import FilterField
from ..lists.kinds import Age, ValueKind
from ..lists.view import Listing, ListView
from ..shell import Shell, page

# Roles of programs. With these roles, the name of the actor is one of hetsched's own texts, not a user name.
_PROGRAMS = ("", "system")
# Pairs of keys in stored details: the value before a change, and the value after it.
_CHANGES = (("before", "after"), ("before", "value"), ("known", "told"))


def kind(row: AuditEntry) -> str:
    """Return the translated kind of an entry's object."""
    return _word("kind", row.object_kind)


def actor(row: AuditEntry) -> str:
    """Return the name of the actor, translated if it is a fixed name of a program."""
    return translate(row.actor) if row.role in _PROGRAMS else row.actor


def role(row: AuditEntry) -> str:
    """Return the translated role of the actor."""
    return _word("role", row.role)


def changed(details: dict[str, Any]) -> str:
    """Return the details of an entry in one line, as "before → after" if both values are recorded."""
    rest = dict(details)
    said = []
    for before, after in _CHANGES:
        if before in rest and after in rest:
            said.append(f"{_plain(rest.pop(before))} → {_plain(rest.pop(after))}")
    named = (f"{_word('detail', name)} {_plain(value)}" for name, value in rest.items() if value not in (None, "", []))
    return pgettext("message", "; ").join([*said, *named])


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return translate(value)
    text = encode(value).decode()
    return _word("detail", text) if isinstance(value, bool) else text


def _word(context: str, word: str) -> str:
    return pgettext(context, word) if word else word


_MOST_VALUES = 200
_MOST_NAME_CHARACTERS = 253
_MOST_DETAIL_CHARACTERS = 300
SUBMISSIONS = "workload.submit"
# Submissions have a separate tab, because most readers look for actions on the cluster.
TABS = {"": gettext_lazy("actions"), "submissions": gettext_lazy("submissions"), "all": gettext_lazy("all")}


def object_url(row: AuditEntry) -> str:
    """Return the URL of the page of an entry's object, or "" if the object has no page."""
    name = row.object_name
    if row.object_kind == "node" and "/" in name:
        cluster, _slash, node = name.partition("/")
        there = 0 < len(node) <= _MOST_NAME_CHARACTERS and not {"/", "\0"} & set(node)
        return f"{reverse('node', args=[node])}?{urlencode({'cluster': cluster})}" if there else ""
    if row.object_kind == "workload" and name.startswith("w-") and name[2:].isalnum():
        return reverse("workload", args=[name])
    if row.object_kind == "hold" and name.startswith("h-") and name[2:].isalnum():
        return reverse("hold", args=[name])
    if row.object_kind in ("policy", "policyrevision"):
        return reverse("policies")
    return reverse("clusters") if row.object_kind in ("cluster", "collector") else ""


def _object_cell(row: AuditEntry) -> Cell:
    return Cell(row.object_name, url=object_url(row), note=kind(row))


def _actor_cell(row: AuditEntry) -> Cell:
    return Cell(actor(row), note=role(row))


def _details_cell(row: AuditEntry) -> Cell:
    text = changed(details_of(row))
    cut = text[:_MOST_DETAIL_CHARACTERS]
    return Cell(f"{cut}…" if len(text) > len(cut) else cut or None, look="text", title=text if text != cut else "")


COLUMNS = (
    Column(
        "at", gettext_lazy("Time"), lambda row: row.at, lambda row: Cell(row.at, look="time"), order=("id",),
        falling=True,
    ),
    Column("actor", gettext_lazy("Actor"), lambda row: row.actor, _actor_cell, order=("actor",)),
    Column("action", gettext_lazy("Action"), lambda row: row.action, lambda row: Cell(row.action, look="mono"),
           order=("action",)),
    Column("object", gettext_lazy("Object"), lambda row: row.object_name, _object_cell,
           order=("object_kind", "object_name")),
    Column("reason", gettext_lazy("Reason"), lambda row: row.reason,
           lambda row: Cell(translate(row.reason) or None, look="text")),
    Column("details", gettext_lazy("Details"), details_of, _details_cell),
    Column("request", gettext_lazy("Request"), lambda row: row.request_id,
           lambda row: Cell(row.request_id or None, look="mono"), shown=False),
    Column("number", gettext_lazy("Entry"), lambda row: row.pk, number=True, shown=False),
)  # fmt: skip
FIELDS = (
    FilterField("who", ValueKind(), gettext_lazy("user, token or program; * is a wildcard"), path="actor", found=True),
    FilterField(
        "action",
        ValueKind(),
        gettext_lazy("for example node.cordon; node.* matches all node actions"),
        path="action",
        found=True,
    ),
    FilterField(
        "kind", ValueKind(), gettext_lazy("node, workload, cluster, policy, token, …"), path="object_kind", found=True
    ),
    FilterField("object", ValueKind(), gettext_lazy("name of the object"), path="object_name"),
    FilterField("reason", ValueKind(), gettext_lazy("reason of the action"), path="reason"),
    FilterField("role", ValueKind(), gettext_lazy("role of the actor"), path="role"),
    FilterField("request", ValueKind(), gettext_lazy("request ID, as in errors and logs"), path="request_id"),
    FilterField("age", Age(), gettext_lazy("age of the entry"), path="at"),
)
_FOUND = {"who": "actor", "action": "action", "kind": "object_kind"}


def _found_by(word: str) -> Q:
    return Q(actor__text_contains=word) | Q(action__text_contains=word) | Q(object_name__text_contains=word) | Q(
        reason__text_contains=word
    )  # fmt: skip


LISTING = Listing(
    "audit", FIELDS, COLUMNS, _found_by, stable=("-id",), example="action=node.*  who=ada  age<24h"
)  # fmt: skip


@page("audit")
def audit(shell: Shell) -> HttpResponseBase:
    wanted = shell.text("show")
    tab = wanted if wanted in TABS else ""
    view = ListView(shell, LISTING, show=tab)
    rows = visible(subject_of(shell.request))
    if column := _FOUND.get(view.wanted_values):
        latest = rows.exclude(action=SUBMISSIONS).values_list(column, flat=True)[: 10 * _MOST_VALUES]
        return view.answer_values(latest)
    if tab == "submissions":
        rows = rows.filter(action=SUBMISSIONS)
    elif not tab:
        rows = rows.exclude(action=SUBMISSIONS)
    context = {
        "chain": (chain := chain_state()),
        "entries_in_all": chain.sealed + chain.unsealed,
        "settled_minutes": int(SETTLED.total_seconds() // 60),
        "tabs": [{"label": label, "url": view.url(show=name), "current": name == tab} for name, label in TABS.items()],
    }
    return view.show(view.ordered(view.filtered(rows)), "audit", context)
