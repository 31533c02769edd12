"""The list of decisions, newest first, with filter and order."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from hetsched.placement.lifecycle import LABELS, State
from hetsched.placement.models import Decision
from hetsched.placement.queries.topics import DECISIONS
from web.translation import translate

from ..lists.columns import Cell, Column
from ..lists.expressions import FilterField
from ..lists.kinds import Age, ChoiceKind, NumberKind, ValueKind
from ..lists.reasons import Code, codes_of
from ..lists.view import Listing, ListView
from ..script_texts import after_name, state_tone
from ..shell import Shell, page

SENTENCE_CHARACTERS = 140
VERDICTS = (State.PLACED, State.NOT_NOW, State.NEVER_FITS, State.MISCONFIGURED)
_FOUND = {"namespace": "namespace", "node": "node_name", "policy": "policy_name"}


def _words(word: str) -> Q:
    """Return the condition for a free word: part of a pod name, `namespace/name`, or a node name."""
    namespace, slash, name = word.rpartition("/")
    if slash:
        return Q(namespace__text_equals=namespace, pod_name__text_contains=name)
    return Q(pod_name__text_contains=word) | Q(node_name__text_equals=word)


def _address(row: Decision) -> str:
    return reverse("decision", args=[row.pk])


def _pod(row: Decision) -> str:
    return f"{row.namespace}/{row.pod_name}"


def _sentence(row: Decision) -> str:
    return after_name(_pod(row), row.summary)


def _why_cell(row: Decision) -> Cell:
    text = after_name(_pod(row), translate(row.summary))
    return Cell(Truncator(text).chars(SENTENCE_CHARACTERS), url=_address(row), look="text")


def _verdict_cell(row: Decision) -> Cell:
    return Cell(str(LABELS[State(row.verdict)]), look="chip", tone=state_tone(row.verdict))


def _node_cell(row: Decision) -> Cell:
    return Cell(row.node_name, url=reverse("node", args=[row.node_name])) if row.node_name else Cell(None)


FIELDS = (
    FilterField("name", ValueKind(), gettext_lazy("pod name; * is a wildcard"), path="pod_name"),
    FilterField("namespace", ValueKind(), gettext_lazy("namespace"), path="namespace", found=True),
    FilterField(
        "verdict",
        ChoiceKind(*(verdict.value for verdict in VERDICTS)),
        gettext_lazy("verdict of the decision"),
        path="verdict",
    ),
    FilterField("node", ValueKind(), gettext_lazy("node of the placement"), path="node_name", found=True),
    FilterField("policy", ValueKind(), gettext_lazy("policy of the decision"), path="policy_name", found=True),
    FilterField("version", NumberKind(), gettext_lazy("policy version"), path="policy_version"),
    FilterField("code", Code(), gettext_lazy("code of a rejection reason"), path="reasons", found=True),
    FilterField("score", NumberKind(), gettext_lazy("score of the selected node"), path="score"),
    FilterField("age", Age(), gettext_lazy("age of the decision"), path="created_at"),
    FilterField("snapshot", ValueKind(), gettext_lazy("digest of the cluster state"), path="snapshot"),
)
COLUMNS = (
    Column(
        "age",
        gettext_lazy("Time"),
        lambda row: row.created_at,
        lambda row: Cell(row.created_at, look="time"),
        order=("id",),
        falling=True,
    ),
    Column("verdict", gettext_lazy("Verdict"), lambda row: row.verdict, _verdict_cell, order=("verdict",)),
    Column(
        "name",
        gettext_lazy("Pod"),
        _pod,
        lambda row: Cell(_pod(row), url=_address(row)),
        order=("namespace", "pod_name"),
    ),
    Column("why", gettext_lazy("Decision"), _sentence, _why_cell, sortable=False),
    Column("node", gettext_lazy("Node"), lambda row: row.node_name or None, _node_cell, order=("node_name",)),
    Column("policy", gettext_lazy("Policy"), lambda row: row.policy_words, order=("policy_name", "policy_version")),
    Column(
        "score",
        gettext_lazy("Score"),
        lambda row: row.score,
        lambda row: Cell(None if row.score is None else f"{row.score:.2f}"),
        number=True,
        order=("score",),
        shown=False,
        falling=True,
    ),
    Column(
        "id",
        gettext_lazy("Number"),
        lambda row: row.pk,
        lambda row: Cell(row.pk, url=_address(row)),
        number=True,
        order=("id",),
        shown=False,
        falling=True,
    ),
    Column(
        "snapshot",
        gettext_lazy("Snapshot"),
        lambda row: row.snapshot,
        lambda row: Cell(row.snapshot[:16], look="mono", title=row.snapshot),
        shown=False,
        sortable=False,
    ),
)
LISTING = Listing(
    "decisions", FIELDS, COLUMNS, _words, stable=("-id",), page_size=50,
    example="verdict=not-now  code=IsaMissingExtension  age<1h  name",
)  # fmt: skip


@page("decisions")
def decisions(shell: Shell) -> HttpResponseBase:
    if shell.cluster is None:
        return shell.render("decisions", {})
    verdict = shell.text("verdict")
    verdict = verdict if verdict in {state.value for state in VERDICTS} else ""
    view = ListView(shell, LISTING, verdict=verdict)
    rows = Decision.objects.filter(cluster=shell.cluster)
    if view.wanted_values:
        return view.answer_values(_values(rows, view.wanted_values))
    shell.follow(DECISIONS)
    rows = view.filtered(rows.filter(verdict=verdict) if verdict else rows)
    tabs = [("", _("all"))] + [(state.value, str(LABELS[state])) for state in VERDICTS]
    return view.show(
        view.ordered(rows).defer("reasons", "top", "allocation", "evictions", "waits_for"),
        "decisions",
        {
            "tabs": [
                {"label": label, "url": view.url(verdict=value), "current": value == verdict} for value, label in tabs
            ]
        },
    )


def _values(rows: Any, name: str) -> list[str]:
    recent = rows.order_by("-id")
    if name == "code":
        return codes_of(recent.values_list("reasons", flat=True))
    # Read suggestions only from recent decisions, because there may be very many.
    return list(recent.values_list(_FOUND[name], flat=True)[:5000]) if name in _FOUND else []
