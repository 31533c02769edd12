"""Report decisions about pods and the state of policies to a live cluster.

Each pod row stores the last reported decision. A pod is due if its latest decision is a different one, so the next run
also reports decisions whose message was lost. A placement is reported once the pod is bound; a placement that was
undone before binding is reported with its cause (missing permission, admission policy, another member of a gang). No
transaction is open during a call.
One run at a time reports the decisions of a cluster, because two would send the same events. A run has the reports of
several pods in flight (`ResultPublisher`), also while it records previous ones, because an API server uses more
processor time per request if it becomes idle between requests. It renews its lease whenever it records results, and
while calls have no response. After `PODS_PER_RUN` pods, or half a minute, it enqueues the next run if more are due.
While pods are waiting for a node, bindings have priority at the API server: a run that starts then reports one pod at a
time and at most `PODS_PER_SLOW_RUN`, and the next run starts after `REST_SECONDS`. Another run ends after its current
`PODS_PER_STEP` pods if a pod begins to wait, so that binding tasks do not wait long for it.
If a decision older than `LATE` is still unreported, `AT_ONCE` pods are reported in parallel even then. Pods whose
report failed are reported after all others, the oldest failure first. Within a run, nominated pods are reported first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from celery import shared_task
from django.core.cache import cache
from django.db.models import F, Q
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.pods.pod_events import PodResult, process_name
from hetsched.adapters.kubernetes.pods.result_publisher import ResultPublisher
from hetsched.adapters.kubernetes.policy_status import PolicyStatus, write_status
from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.message import Message
from hetsched.contracts.times import rfc3339
from hetsched.inventory.connections import api_of
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.inventory.node_loads import write_columns
from hetsched.placement import dispatch
from hetsched.placement.lifecycle import HOLDING, UNPLACED, State
from hetsched.placement.models import Pod
from hetsched.placement.models.workloads import UNREPORTED
from hetsched.placement.queries.redaction import Redaction
from hetsched.policies.models import PolicyObject
from hetsched.scheduling.leases import HeldLease, reporting
from hetsched.storage.bulk_rows import write_values
from hetsched.storage.write_lock import write_transaction

PODS_PER_STEP = 100
PODS_PER_RUN, PODS_PER_SLOW_RUN = 1000, 300
REST_SECONDS = 0.1
RETRY_SECONDS = 1.0
LATE = timedelta(seconds=15)
AT_ONCE = 16
_REPORTED = sorted(state.value for state in (State.PENDING, *UNPLACED, *HOLDING - {State.PLACED, State.BINDING}))


def unreported(cluster_id: int) -> Q:
    """Return the condition for pods whose latest decision has not been reported to the cluster."""
    # A pending pod with a message has a decision that was undone.
    decided = Q(state__in=_REPORTED) & ~Q(state=State.PENDING.value, message="")
    return Q(cluster_id=cluster_id, origin__in=Pod.OURS, decision__isnull=False) & decided & UNREPORTED


def unreported_policies(cluster_id: int) -> Q:
    """Return the condition for policies whose status has not been written to their objects."""
    return Q(cluster_id=cluster_id, reported=False, gone=False)


@shared_task(name=dispatch.REPORT)
def run(cluster_id: int) -> int:
    """Write conditions and events for decisions; return the number of reported pods."""
    cluster = Cluster.objects.filter(pk=cluster_id, kind=ClusterKind.KUBERNETES, connection__shadow_of="").first()
    if cluster is None or not _is_due(cluster_id):
        return 0
    instance = process_name()
    lease = reporting.take(cluster_id, instance)
    if lease is None:
        _retry(cluster_id)
        return 0
    try:
        reported, has_more = _report(cluster, HeldLease(reporting, lease), instance)
    finally:
        reporting.release(lease)
    # Failed reports alone do not start the next run; `sweep` retries them.
    if has_more and _is_due(cluster_id) and (reported or _has_untried_pods(cluster_id)):
        if _has_undecided_pods(cluster_id):
            dispatch.send(cluster_id, dispatch.REPORT, in_seconds=REST_SECONDS)
        else:
            dispatch.wake(cluster_id, dispatch.REPORT)
    return reported


def _retry(cluster_id: int) -> None:
    """Repeat this run later: the run that holds the lease has read its pods, and may not report those of this wake-up.

    A process repeats only one of the runs that end within `RETRY_SECONDS` without the lease.
    """
    if cache.add(f"report-retry-{cluster_id}", True, RETRY_SECONDS):
        dispatch.send(cluster_id, dispatch.REPORT, in_seconds=RETRY_SECONDS)


def _is_due(cluster_id: int) -> bool:
    """Return whether there are unreported decisions or policies."""
    pods = Pod.objects.filter(unreported(cluster_id))
    return pods.exists() or PolicyObject.objects.filter(unreported_policies(cluster_id)).exists()


def _has_untried_pods(cluster_id: int) -> bool:
    """Return whether there are pods with an unreported decision and without a failed report."""
    due = Pod.objects.filter(unreported(cluster_id))
    return due.filter(report_failed_at=None).exists()


def _report(cluster: Cluster, lease: HeldLease, instance: str) -> tuple[int, bool]:
    """Report all policies and the next decisions, while the lease is held.

    Return the number of reported pods, and whether some of the pods that were due before the run may be left.
    """
    api = api_of(cluster)
    for policy in PolicyObject.objects.filter(unreported_policies(cluster.pk)):
        _report_policy(api, policy)
        if not lease.renew(only_if_due=True):
            return 0, False
    waits = _has_undecided_pods(cluster.pk)
    most = PODS_PER_SLOW_RUN if waits else PODS_PER_RUN
    results, since = _due_results(cluster.pk, most)
    at = timezone.now()
    reported = 0
    step: list[tuple[PodResult, bool]] = []
    if not lease.renew(only_if_due=True):
        return 0, False
    with ResultPublisher(api, results, instance=instance, at_once=_concurrency(waits, since, at)) as publisher:
        for ended in publisher.publish():
            step += ended
            if len(step) < PODS_PER_STEP and not lease.is_due:
                continue
            reported, step = reported + _record(step, at), []
            # The API server processes the next reports during these statements.
            if not publisher.is_done:
                publisher.ends = not lease.renew() or (not waits and _has_undecided_pods(cluster.pk))
    reported += _record(step, at)
    return reported, reported < len(results) or len(results) == most


def _record(step: Sequence[tuple[PodResult, bool]], at: datetime) -> int:
    """Write which of these pods were reported, and which reports failed; return the number of reported pods."""
    if not step:
        return 0
    reported = [(result.decision_id, None, result.pod_id) for result, is_done in step if is_done]
    failed = [Pod(pk=result.pod_id, report_failed_at=at) for result, is_done in step if not is_done]
    with write_transaction():
        write_values(Pod, ("reported_decision", "report_failed_at"), reported)
        write_columns(failed, ("report_failed_at",))
    return len(reported)


def _concurrency(waits: bool, since: datetime | None, now: datetime) -> int:
    """Return how many pods to report in parallel; `since` is the time of the oldest decision among them.

    `waits` is true if there are undecided pods.
    """
    is_late = since is not None and since < now - LATE
    return 1 if waits and not is_late else AT_ONCE


def _has_undecided_pods(cluster_id: int) -> bool:
    """Return whether there are pods that wait for a node, a binding or their first decision."""
    states = (State.PENDING.value, State.PLACED.value, State.BINDING.value)
    return Pod.objects.filter(cluster_id=cluster_id, state__in=states).exists()


def _report_policy(api: Api, policy: PolicyObject) -> None:
    since = rfc3339(policy.since)[:19] + "Z"
    status = PolicyStatus(policy.name, policy.uid, policy.generation, policy.version, since, policy.problem)
    if write_status(api, status):
        # Do not mark a policy that was reviewed again in the meantime, because its new result is not reported yet.
        PolicyObject.objects.filter(pk=policy.pk, judged_at=policy.judged_at).update(reported=True)


def _due_results(cluster_id: int, count: int) -> tuple[list[PodResult], datetime | None]:
    """Return the next decisions to report, at most `count`, and the time of the oldest decision."""
    due = Pod.objects.filter(unreported(cluster_id))
    rows = due.order_by(F("report_failed_at").asc(nulls_first=True), "id").values_list(
        "id", "decision_id", "namespace", "name", "uid", "decision__verdict", "decision__summary", "state", "message",
        "node__name", "decision__nominated_node", "decision__created_at",
    )[:count]  # fmt: skip
    redactions: dict[str, Redaction] = {}
    some = []
    for pk, decision, space, name, uid, verdict, summary, state, message, node, nominated, _ in rows:
        tenant = redactions.get(space) or redactions.setdefault(space, Redaction(frozenset({space})))
        sentence = _sentence(tenant, summary, state, message)
        some.append(PodResult(pk, decision, space, name, uid, Verdict(verdict), sentence, node or "", nominated))
    # Other programs, such as cluster autoscalers, read the nominated node of a pod.
    some.sort(key=lambda result: not result.nominated)
    return some, min((row[-1] for row in rows), default=None)


def _sentence(tenant: Redaction, summary: str, state: str, message: str) -> str:
    """Return the message of a pod's condition, without the names of pods in other namespaces than the tenant's."""
    text = tenant.summary(summary)
    if state != State.PENDING.value:
        return text
    return Message("{detail}, but was not bound: {reason}", detail=text, reason=tenant.message(message))
