"""The explanation page of one pod: verdict, changes that would help, time by reason, and history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from hetsched.access.subject import subject_of
from hetsched.inventory.actions import cluster_topic
from hetsched.placement.lifecycle import LABELS, QUEUED, State
from hetsched.placement.models import Pod, Workload
from hetsched.placement.queries.redaction import Redaction
from hetsched.placement.queries.topics import workload_topic
from hetsched.placement.queries.why import (
    PLACED_CODE,
    QUEUED_CODE,
    ReasonSpan,
    changes_between,
    decisions_of,
    gang_of,
    preemptions_of,
    spans_of,
)
from web.translation import translate

from ..amounts import duration
from ..script_texts import matrix_texts, result_texts, state_texts, why_texts
from ..shell import Shell, page
from .why import omitted_scores, why

_COLOURS = 6
# The first pod in this order of states is the most relevant one.
_WORST = (State.MISCONFIGURED, State.NEVER_FITS, State.NOT_NOW, State.PENDING, State.FAILED)


@page("workloads")
def pod_why(shell: Shell, pk: str) -> HttpResponse:
    rows = Pod.objects.select_related("cluster", "workload", "node", "decision").defer("node__report")
    pod = rows.filter(pk=pk).first()
    if pod is None or not subject_of(shell.request).may_in(pod.namespace):
        raise Http404(_("Pod %(id)s does not exist, or was deleted after its retention time.") % {"id": pk})
    shell.select_cluster(pod.cluster)
    shell.follow(workload_topic(pod.workload_id) if pod.workload_id else cluster_topic(pod.cluster))
    decisions = decisions_of(pod)
    spans = spans_of(pod, decisions, timezone.now())
    gang = gang_of(pod)
    return shell.render(
        "pod_why",
        {
            "pod": pod,
            "why": {**why(pod.decision, pod), "left_out": omitted_scores(pod.decision)} if pod.decision else None,
            "waiting": State(pod.state) in QUEUED,
            "pending": duration(sum(span.seconds for span in spans if span.pending)),
            "reasons": _by_reason(spans),
            "spans": [
                {
                    "since": span.since,
                    "time": duration(span.seconds),
                    "words": _words(span),
                    "decision": span.decision,
                }
                for span in spans
            ],
            "changed": changes_between(*decisions[-2:]) if len(decisions) > 1 else None,
            "compared": decisions[-1].pk if decisions else None,
            "preemptions": Redaction(subject_of(shell.request).namespaces).preemptions(preemptions_of([pod])),
            "gang": gang
            and {
                "name": gang.name,
                "placed": gang.placed,
                "needed": gang.needed,
                "broken_by": gang.broken_by,
                "members": [
                    {"id": member.id, "pod": member.pod, "label": LABELS[State(member.state)]}
                    for member in gang.members
                ],
            },
            "words": {**state_texts(), **result_texts(), **matrix_texts(), **why_texts()},
        },
    )


def _words(span: ReasonSpan) -> str:
    if span.code == QUEUED_CODE:
        return _("in the queue, no attempt yet")
    if span.code == PLACED_CODE:
        return _("placed on %(node)s") % {"node": span.message} if span.message else _("running")
    return translate(span.message) or span.code


def _by_reason(spans: Sequence[ReasonSpan]) -> list[dict[str, Any]]:
    """Return the pending time by reason, the longest first; the shares add up to 1."""
    grouped: dict[tuple[str, str, str], list[ReasonSpan]] = {}
    for span in spans:
        if span.pending:
            grouped.setdefault((span.plugin, span.code, _words(span)), []).append(span)
    total = sum(span.seconds for group in grouped.values() for span in group)
    rows = sorted(grouped.items(), key=lambda item: -sum(span.seconds for span in item[1]))
    return [
        {
            "plugin": plugin,
            "words": words,
            "time": duration(sum(span.seconds for span in group)),
            "ratio": sum(span.seconds for span in group) / total if total else 0,
            "percent": round(100 * sum(span.seconds for span in group) / total) if total else 0,
            "count": len(group),
            "colour": at % _COLOURS + 1,
        }
        for at, ((plugin, _code, words), group) in enumerate(rows)
    ]


@page("workloads")
def workload_why(shell: Shell, pk: str) -> HttpResponse:
    """Redirect to the most relevant pod of a workload: a pod that prevents it from running, else the first pod."""
    found = Workload.objects.filter(pk=pk).first()
    pods = list(found.pods.order_by("id").values_list("pk", "state", "namespace")) if found else []
    pods = [pod for pod in pods if subject_of(shell.request).may_in(pod[2])]
    if not pods:
        raise Http404(_("Workload %(id)s does not exist.") % {"id": pk})
    order = {state.value: at for at, state in enumerate(_WORST)}
    worst = min(pods, key=lambda pod: order.get(pod[1], len(order)))
    return HttpResponseRedirect(reverse("pod-why", args=[worst[0]]) + shell.keep())
