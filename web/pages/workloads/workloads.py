"""The page of one workload, which explains the state of each of its pods."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Count, Q
from django.http import Http404, HttpResponse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from hetsched.access.subject import subject_of
from hetsched.placement.lifecycle import FINISHED, HOLDING, LABELS, State
from hetsched.placement.models import Hold, Workload
from hetsched.placement.queries.images import images_of
from hetsched.placement.queries.redaction import Redaction
from hetsched.placement.queries.topics import workload_topic
from hetsched.placement.queries.why import preemptions_of

from ..account.webhooks import of_workload
from ..actions import on_workload
from ..amounts import duration
from ..script_texts import result_texts
from ..shell import Shell, page
from .why import why

PODS_A_PAGE = 20
MOST_OBJECTS = 100
_COLOURS = 6
MOST_MANIFEST_IN_ADDRESS = 6000


@page("workloads")
def workload(shell: Shell, pk: str) -> HttpResponse:
    shell.follow(workload_topic(pk))
    found = Workload.objects.select_related("cluster").filter(pk=pk).first()
    if found is None:
        raise Http404(_("Workload %(id)s does not exist.") % {"id": pk})
    shell.select_cluster(found.cluster)
    counts = dict(found.pods.order_by().values_list("state").annotate(Count("id")))
    pods = found.pods.select_related("node", "decision").defer("node__report").order_by("id")
    wanted = shell.text("pod")
    if wanted:
        namespace, _slash, name = wanted.rpartition("/")
        pods = pods.filter(Q(namespace=namespace) if namespace else Q(), name=name)
    shown = shell.page_of(pods, PODS_A_PAGE)
    history = _history(found, timezone.now())
    known = {image.image: image for image in images_of(found.cluster, [pod.spec for pod in shown])}
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
            "words": result_texts(),
            "workload": found,
            "acts": on_workload(found, counts, subject_of(shell.request)),
            "counts": [(LABELS[State(state)], state, count) for state, count in sorted(counts.items())],
            "hold": Hold.objects.filter(workload=found).only("id").first(),
            "history": history,
            "preemptions": Redaction(subject_of(shell.request).namespaces).preemptions(preemptions_of(shown)),
            "lasted": duration(sum(step["seconds"] for step in history)),
            "objects": found.objects_there.order_by("id")[:MOST_OBJECTS],
            "deliveries": of_workload(pk, subject_of(shell.request)),
            "wanted": wanted,
            # A what-if of a running workload would mislead: its own pods already occupy the resources.
            "askable": found.state not in HOLDING and len(found.manifest) <= MOST_MANIFEST_IN_ADDRESS,
            "page": shown,
            "filter_query": shell.keep(pod=wanted).replace("?", "&", 1),
        },
    )


def _history(workload: Workload, now: datetime) -> list[dict[str, Any]]:
    """Return the past states with their durations; the last state of an unfinished workload lasts until now."""
    steps = [(state, at) for state, text in workload.history if (at := parse_datetime(text))]
    ends = [at for _state, at in steps[1:]] + [now]
    over = State(workload.state) in FINISHED
    spans = [
        0.0 if over and number == len(steps) else max((end - at).total_seconds(), 0.0)
        for number, ((_state, at), end) in enumerate(zip(steps, ends, strict=True), start=1)
    ]
    whole = sum(spans)
    colours = {state: at % _COLOURS + 1 for at, state in enumerate(dict.fromkeys(state for state, _at in steps))}
    return [
        {
            "state": state,
            "label": LABELS[State(state)],
            "at": at,
            "time": duration(seconds),
            "ratio": seconds / whole if whole else 0,
            "goes_on": not over and number == len(steps),
            "over": over and number == len(steps),
            "colour": colours[state],
            "seconds": seconds,
        }
        for number, ((state, at), seconds) in enumerate(zip(steps, spans, strict=True), start=1)
    ]
