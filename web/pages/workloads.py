"""Pods by state, and one workload with the reason for each of its pods."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Q
from django.http import Http404, HttpResponse
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from hetsched.contracts.waits import in_words
from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.models import Cluster
from hetsched.placement.images import images_of
from hetsched.placement.lifecycle import HOLDING, LABELS, State
from hetsched.placement.models import Pod, Workload
from hetsched.placement.topics import workload_topic

from .shell import Shell, page
from .why import why
from .words import after_name, result_words, state_words

PAGE_SIZE = 50
PODS_A_PAGE = 20
MOST_MANIFEST_IN_ADDRESS = 6000
# A tab is one state, except that what counts as running or waiting on the first screen is one tab here too.
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


@page("workloads")
def workloads(shell: Shell) -> HttpResponse:
    if shell.cluster is None:
        return shell.render("workloads", {})
    shell.follow(cluster_topic(shell.cluster))
    query = shell.text("q")
    rows = Pod.objects.filter(cluster=shell.cluster)
    if query:
        namespace, slash, name = query.rpartition("/")
        rows = rows.filter(name__icontains=name)
        if slash:
            rows = rows.filter(namespace=namespace)
    counts = dict(rows.order_by().values_list("state").annotate(Count("id")))
    tab = shell.text("state")
    tab = tab if tab in TABS else "running"
    found = rows.filter(state__in=TABS[tab]).select_related("node", "decision").order_by("-id")
    shown = shell.page_of(_lean(found), PAGE_SIZE)
    return shell.render(
        "workloads",
        {
            "rows": [
                (pod, after_name(pod.key, pod.decision.summary) if pod.decision else "", in_words(pod.waits_for))
                for pod in shown
            ],
            "query": query,
            "state": tab,
            "tabs": _tabs(shell, counts, tab, query),
            "page": shown,
            "filter_query": shell.keep(q=query, state=tab).replace("?", "&", 1),
            "any": any(counts.values()) or bool(query) or _has_pods(shell.cluster),
        },
    )


def _lean(rows: Any) -> Any:
    heavy = ("spec", "allocation", "node__report", "decision__reasons", "decision__top", "decision__allocation")
    return rows.defer(*heavy)


def _has_pods(cluster: Cluster) -> bool:
    return Pod.objects.filter(cluster=cluster).exists()


def _tabs(shell: Shell, counts: dict[str, int], current: str, query: str) -> list[dict[str, Any]]:
    labels = {**state_words(), "running": _("running"), "not-now": _("waiting")}
    return [
        {
            "label": labels[name],
            "count": sum(counts.get(state.value, 0) for state in states),
            "url": shell.keep(state=name, q=query),
            "current": name == current,
        }
        for name, states in TABS.items()
    ]


@page("workloads")
def workload(shell: Shell, pk: str) -> HttpResponse:
    shell.follow(workload_topic(pk))
    found = Workload.objects.select_related("cluster").filter(pk=pk).first()
    if found is None:
        raise Http404(_("There is no workload %(id)s.") % {"id": pk})
    shell.cluster = found.cluster
    counts = dict(found.pods.order_by().values_list("state").annotate(Count("id")))
    pods = found.pods.select_related("node", "decision").defer("node__report").order_by("id")
    wanted = shell.text("pod")
    if wanted:
        namespace, _slash, name = wanted.rpartition("/")
        pods = pods.filter(Q(namespace=namespace) if namespace else Q(), name=name)
    shown = shell.page_of(pods, PODS_A_PAGE)
    known = {one.image: one for one in images_of(found.cluster, [pod.spec for pod in shown])}
    return shell.render(
        "workload",
        {
            "pods": [
                (
                    pod,
                    why(pod.decision, pod) if pod.decision else None,
                    [known[i] for i in pod.spec.images if i in known],
                )
                for pod in shown
            ],
            "refused": next((pod.decision_id for pod in shown if pod.state in (State.NOT_NOW, State.NEVER_FITS)), None),
            "words": result_words(),
            "workload": found,
            "counts": [(LABELS[State(state)], state, count) for state, count in sorted(counts.items())],
            "history": _history(found),
            "wanted": wanted,
            # What runs would be in its own way.
            "askable": found.state not in HOLDING and len(found.manifest) <= MOST_MANIFEST_IN_ADDRESS,
            "page": shown,
            "filter_query": shell.keep(pod=wanted).replace("?", "&", 1),
        },
    )


def _history(workload: Workload) -> list[dict[str, Any]]:
    """Return the states it went through, with how long it was in each; the last one goes on."""
    steps = [(state, parse_datetime(at)) for state, at in workload.history]
    ends = [at for _state, at in steps[1:]] + [None]
    return [
        {
            "state": state,
            "label": LABELS[State(state)],
            "at": at,
            "seconds": round((end - at).total_seconds(), 1) if end and at else None,
        }
        for (state, at), end in zip(steps, ends, strict=True)
    ]
