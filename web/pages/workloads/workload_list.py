"""The workload list: pods by state, with filter and order, and a sentence of explanation for each pod."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Q
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from hetsched.contracts.waits import describe_waits
from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.models import Cluster
from hetsched.placement.lifecycle import HOLDING, State
from hetsched.placement.models import Pod
from web.translation import translate

from ..lists.columns import Cell, Column
from ..lists.expressions import FilterField
from ..lists.kinds import Age, ChoiceKind, NumberKind, ValueKind
from ..lists.reasons import Code, codes_of
from ..lists.view import Listing, ListView
from ..row_selection import pickable
from ..script_texts import after_name, state_texts, state_tone
from ..shell import Shell, page

SENTENCE_CHARACTERS = 140
# Each tab shows one state, except that running and pending combine the same states as on the fleet page.
TABS: dict[str, tuple[State, ...]] = {
    "running": (State.RUNNING, State.BOUND, State.BINDING, State.PLACED),
    "not-now": (State.PENDING, State.NOT_NOW),
    "never-fits": (State.NEVER_FITS,),
    "misconfigured": (State.MISCONFIGURED,),
    "failed": (State.FAILED,),
    "succeeded": (State.SUCCEEDED,),
    "cancelled": (State.CANCELLED,),
}
assert {state for states in TABS.values() for state in states} == set(State)
assert set(TABS["running"]) == HOLDING
_HEAVY = ("spec", "allocation", "node__report", "decision__reasons", "decision__top", "decision__allocation")
_FOUND = {"namespace": "namespace", "node": "node__name", "pool": "node__pool", "policy": "policy", "gang": "gang"}


def _words(word: str) -> Q:
    """Return the condition for a free word: part of a pod name, a namespace, or `namespace/name`."""
    namespace, slash, name = word.rpartition("/")
    if slash:
        return Q(namespace__text_equals=namespace, name__text_contains=name)
    return Q(name__text_contains=word) | Q(namespace__text_equals=word)


def _pod_cell(pod: Pod) -> Cell:
    if not pod.workload_id:
        return Cell(pod.key)
    return Cell(pod.key, url=f"{reverse('workload', args=[pod.workload_id])}?{urlencode({'pod': pod.key})}")


def _state_cell(pod: Pod) -> Cell:
    return Cell(pod.get_state_display(), look="chip", tone=state_tone(pod.state))


def _node_cell(pod: Pod) -> Cell:
    return Cell(pod.node.name, url=reverse("node", args=[pod.node.name])) if pod.node else Cell(None)


def _sentence(pod: Pod) -> str:
    return after_name(pod.key, pod.decision.summary) if pod.decision else ""


def _why_cell(pod: Pod) -> Cell:
    if pod.decision is None:
        return Cell(_("no attempt yet") if pod.workload_id else _("present at import"), look="muted")
    waits = describe_waits(pod.waits_for)
    short = Truncator(after_name(pod.key, translate(pod.decision.summary))).chars(SENTENCE_CHARACTERS)
    url = reverse("pod-why", args=[pod.pk])
    if not waits:
        return Cell(short, url=url, look="text")
    return Cell(_("Waits for: %(events)s") % {"events": translate(waits)}, url=url, look="text", note=short)


def _time(name: str) -> Any:
    def cell(pod: Pod) -> Cell:
        moment = getattr(pod, name)
        return Cell(moment, look="time") if moment else Cell(None)

    return cell


FIELDS = (
    FilterField("name", ValueKind(), gettext_lazy("pod name; * is a wildcard"), path="name"),
    FilterField("namespace", ValueKind(), gettext_lazy("namespace"), path="namespace", found=True),
    FilterField(
        "state",
        ChoiceKind(*(state.value for state in State)),
        gettext_lazy("pod state"),
        path="state",
    ),
    FilterField("node", ValueKind(), gettext_lazy("node of the pod"), path="node__name", found=True),
    FilterField("pool", ValueKind(), gettext_lazy("pool of the node"), path="node__pool", found=True),
    FilterField("policy", ValueKind(), gettext_lazy("requested policy"), path="policy", found=True),
    FilterField("gang", ValueKind(), gettext_lazy("gang of the pod"), path="gang", found=True),
    FilterField(
        "code",
        Code(),
        gettext_lazy("code of a rejection reason"),
        path="decision__reasons",
        found=True,
    ),
    FilterField("priority", NumberKind(), gettext_lazy("priority"), path="priority"),
    FilterField("attempts", NumberKind(), gettext_lazy("number of attempts"), path="attempts"),
    FilterField("age", Age(), gettext_lazy("age of the submission"), path="created_at"),
    FilterField("tried", Age(), gettext_lazy("time since the last attempt"), path="tried_at"),
)
COLUMNS = (
    Column("name", gettext_lazy("Pod"), lambda pod: pod.key, _pod_cell, order=("namespace", "name")),
    Column("state", gettext_lazy("State"), lambda pod: pod.state, _state_cell, order=("state",)),
    Column(
        "node", gettext_lazy("Node"), lambda pod: pod.node.name if pod.node else None, _node_cell, order=("node__name",)
    ),
    Column("why", gettext_lazy("Reason"), _sentence, _why_cell, sortable=False),
    Column(
        "priority", gettext_lazy("Priority"), lambda pod: pod.priority, number=True, order=("priority",), falling=True
    ),
    Column(
        "age",
        gettext_lazy("Submitted"),
        lambda pod: pod.created_at,
        _time("created_at"),
        order=("created_at",),
        falling=True,
    ),
    Column(
        "tried",
        gettext_lazy("Last attempt"),
        lambda pod: pod.tried_at,
        _time("tried_at"),
        order=("tried_at",),
        shown=False,
        falling=True,
    ),
    Column(
        "attempts",
        gettext_lazy("Attempts"),
        lambda pod: pod.attempts,
        number=True,
        order=("attempts",),
        shown=False,
        falling=True,
    ),
    Column("policy", gettext_lazy("Policy"), lambda pod: pod.policy or None, order=("policy",), shown=False),
    Column("gang", gettext_lazy("Gang"), lambda pod: pod.gang or None, order=("gang",), shown=False),
    Column(
        "pool",
        gettext_lazy("Pool"),
        lambda pod: pod.node.pool if pod.node else None,
        order=("node__pool",),
        shown=False,
    ),
    Column("workload", gettext_lazy("Workload"), lambda pod: pod.workload_id, shown=False, sortable=False),
)
LISTING = Listing(
    "workloads", FIELDS, COLUMNS, _words, stable=("-id",), page_size=50,
    example="namespace=ci  code=IsaMissingExtension  age>10m  name",
)  # fmt: skip

# Actions that are offered for several workloads at a time.
_OFFERED = {
    "running": ("cancel",),
    "not-now": ("retry", "priority", "cancel"),
    "never-fits": ("retry", "priority", "cancel"),
    "misconfigured": ("cancel",),
    "failed": ("retry",),
}


@page("workloads")
def workloads(shell: Shell) -> HttpResponseBase:
    if shell.cluster is None:
        return shell.render("workloads", {})
    tab = shell.text("state")
    tab = tab if tab in TABS else "running"
    view = ListView(shell, LISTING, state=tab)
    rows = Pod.objects.filter(cluster=shell.cluster)
    if view.wanted_values:
        return view.answer_values(_values(rows, view.wanted_values))
    shell.follow(cluster_topic(shell.cluster))
    filtered = view.filtered(rows)
    counts = dict(filtered.order_by().values_list("state").annotate(Count("id")))
    found = view.ordered(filtered.filter(state__in=TABS[tab])).select_related("node", "decision").defer(*_HEAVY)
    return view.show(
        found,
        "workloads",
        {
            "tabs": _tabs(view, counts, tab),
            "any": any(counts.values()) or bool(view.query) or _has_pods(shell.cluster),
            "offers": pickable(view, *_OFFERED.get(tab, ())),
        },
    )


def _has_pods(cluster: Cluster) -> bool:
    return Pod.objects.filter(cluster=cluster).exists()


def _values(rows: Any, name: str) -> list[str]:
    if name == "code":
        return codes_of(rows.exclude(decision=None).order_by("-id").values_list("decision__reasons", flat=True))
    return list(rows.order_by().values_list(_FOUND[name], flat=True).distinct()[:200]) if name in _FOUND else []


def _tabs(view: ListView, counts: dict[str, int], current: str) -> list[dict[str, Any]]:
    labels = {**state_texts(), "running": _("running"), "not-now": _("pending")}
    return [
        {
            "label": labels[name],
            "count": sum(counts.get(state.value, 0) for state in states),
            "url": view.url(state=name),
            "current": name == current,
        }
        for name, states in TABS.items()
    ]
