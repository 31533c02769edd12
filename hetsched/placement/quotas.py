"""Quotas of submitters and limits of namespaces, counted in the transaction of the submission.

Two concurrent submissions may fit into the remaining quota each, but not both together.
A submission is written first and counted afterwards in the same transaction. The transaction locks the names that the
submission is counted against, in sorted order, and adds its amounts to all committed amounts. If the sum exceeds a
limit, the transaction is rolled back. The locks are held until the commit, which follows immediately; a writer of
several submissions acquires all locks first. While the queue of an offline cluster is much shorter than the limit of a
namespace, submissions of a few pods share the lock of the namespace, so that they do not wait for each other's commits.
They do not see each other's pods, but the pods of all of them are fewer than `_RESERVED_PODS`.
The full amounts of a workload are counted until it has finished. The amounts of a hold are counted until it ends: in
full before a claim, and after a claim only the excess over the amounts of the workload that claimed it.
Invariant: at every commit the amounts submitted and held by an owner with a quota are within the quota, under any race.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from django.conf import settings
from django.db.models import Q

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allowance import GPU_MILLI, PODS, Allowance
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import format_amount
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.storage.named_locks import lock
from hetsched.storage.statements import fetch

from .lifecycle import FINISHED
from .models import Charge, Hold, Pod, Workload

_OVER = sorted(state.value for state in FINISHED)
# The reserve is enough for 1,000 concurrent transactions, each on its own database connection, of a few pods each.
_FEW_PODS = 10
_RESERVED_PODS = 10_000
COUNTED_SECONDS = 1.0
# Number of queued pods by cluster ID, if this process has counted all of them in its last count, and its time.
_last_counts: dict[int, tuple[int, float]] = {}


def check_ceiling(allowance: Allowance, pods: Iterable[PodSpec], priority: int | None) -> None:
    """Reject pods with a higher priority than their submitter may use.

    Raises: InputError `PriorityNotAllowed`.
    """
    most = allowance.priority
    if most is None:
        return
    pods = list(pods)
    for pod in pods if priority is None else ():
        # Reject a class that hetsched has not observed: the live cluster may have it, with an unknown priority.
        unknown = next((problem for problem in pod.problems if problem.code == "PriorityClassUnknown"), None)
        if unknown is not None:
            raise InputError(
                "PriorityNotAllowed",
                Message(
                    "{detail}; the priority cannot be compared with {n}, the highest priority for this token",
                    detail=unknown.message,
                    n=most,
                ),
                place=unknown.field,
                hint="Use a PriorityClass of the cluster, or none",
            )
    highest = priority if priority is not None else max((pod.priority for pod in pods), default=most)
    if highest > most:
        raise InputError(
            "PriorityNotAllowed",
            Message("priority {value} is higher than {most}, the highest for this token", value=highest, most=most),
            place="priority",
            hint="Use a lower priority or another token",
        )


def check_quota(
    cluster: Cluster, charged: Sequence[tuple[Workload, Sequence[PodSpec]]], owner: str, allowance: Allowance
) -> None:
    """Count new workloads against the quota of their owner and the limits of their namespaces.

    Raises: InputError `QuotaTooSmall` if they can never fit, `QuotaExceeded`, `NamespaceFull`.
    """
    namespaces = Counter(pod.namespace for _, pods in charged for pod in pods)
    names = lock_names(cluster.pk, namespaces, owner if allowance.most else "")
    if not allowance.most and _may_share(cluster, namespaces.total()):
        lock(names, shared=True)
        if not has_queued(cluster, settings.HETSCHED_MOST_WAITING_PODS_PER_NAMESPACE - _RESERVED_PODS):
            return
    lock(names)
    if allowance.most:
        _charge(charged, owner, allowance.most)
    for name in sorted(namespaces):
        _check_namespace(cluster, name, namespaces[name])


def _may_share(cluster: Cluster, pods: int) -> bool:
    """Return whether a submission may share the locks of its namespaces.

    Near the limit, submissions do not start with a shared lock: two of them would wait for each other's lock.
    """
    most = settings.HETSCHED_MOST_WAITING_PODS_PER_NAMESPACE - 2 * _RESERVED_PODS
    queued, _ = _last_counts.get(cluster.pk, (most, 0.0))
    return cluster.kind != ClusterKind.KUBERNETES and pods <= _FEW_PODS and queued < most


def lock_names(cluster_id: int, namespaces: Iterable[str], owner: str = "") -> set[str]:
    """Return the names of the quota locks of these namespaces and this owner."""
    return {f"namespace {cluster_id} {name}" for name in namespaces} | ({f"owner {owner}"} if owner else set())


def _charge(charged: Sequence[tuple[Workload, Sequence[PodSpec]]], owner: str, most: Mapping[str, int]) -> None:
    same = {"owner": owner, "bounds": dict(most)}
    own = [Charge(workload=workload, amounts=_requests(pods, most), **same) for workload, pods in charged]
    wanted: Counter[str] = Counter()
    for charge in own:
        wanted.update(charge.amounts)
    _check_bounds(wanted, most)
    Charge.objects.bulk_create(own)
    _check_owner(owner, most, wanted)


def check_hold_quota(hold: Hold, pods: Sequence[PodSpec], allowance: Allowance) -> None:
    """Count a new hold against the quota of its owner, like running pods with the same requests.

    Raises: InputError `PriorityNotAllowed`, `QuotaTooSmall`, `QuotaExceeded`.
    """
    check_ceiling(allowance, pods, None)
    if not allowance.most:
        return
    lock(lock_names(hold.cluster_id, (), hold.owner))
    hold.amounts = _requests(pods, allowance.most)
    _check_bounds(hold.amounts, allowance.most)
    hold.save(update_fields=["amounts"])
    _check_owner(hold.owner, allowance.most, hold.amounts)


def _check_bounds(wanted: Mapping[str, int], most: Mapping[str, int]) -> None:
    for name, bound in most.items():
        if wanted[name] > bound:
            raise InputError(
                "QuotaTooSmall", _excess_message(name, bound, wanted[name], 0), place=name, hint="Reduce the requests"
            )


def _check_owner(owner: str, most: Mapping[str, int], wanted: Mapping[str, int]) -> None:
    """Reject a submission or hold if the owner's total, including it, exceeds the quota."""
    held: Counter[str] = Counter()
    rows = Charge.objects.filter(owner=owner).exclude(workload__state__in=_OVER)
    charged: dict[str, dict[str, int]] = dict(rows.values_list("workload_id", "amounts"))
    # A hold claimed for another owner, as an operator may do, is not counted for this owner any more.
    holds = Hold.objects.filter(Q(state=Hold.HELD) | Q(state=Hold.CLAIMED, workload__owner=owner), owner=owner)
    for claimed_by, amounts in holds.values_list("workload_id", "amounts"):
        own = charged.get(claimed_by, {})
        held.update({name: max(0, amount - own.get(name, 0)) for name, amount in amounts.items()})
    for amounts in charged.values():
        held.update(amounts)
    for name, bound in most.items():
        if held[name] > bound:
            text = _excess_message(name, bound, wanted[name], held[name] - wanted[name])
            raise InputError("QuotaExceeded", text, place=name, hint="Wait until workloads end, or cancel some")


def _excess_message(name: str, bound: int, wanted: int, held: int) -> Message:
    asked, most, there = (format_amount(name, amount) for amount in (wanted, bound, held))
    text = "{resource}: {asked} requested, {held} in use, the quota of this token is {most}"
    return Message(text, resource=name, asked=asked, held=there, most=most)


def _requests(pods: Sequence[PodSpec], names: Iterable[str]) -> dict[str, int]:
    """Return the total requests of these pods for each of the named resources."""
    found = {}
    for name in names:
        if name == PODS:
            found[name] = len(pods)
        elif name == GPU_MILLI:
            found[name] = sum(pod.shape.gpu.count * pod.shape.gpu.milli for pod in pods if pod.shape.gpu is not None)
        else:
            found[name] = sum(pod.shape.request(name) for pod in pods)
    return found


def has_queued(cluster: Cluster, count: int) -> bool:
    """Return True if at least `count` pods of a cluster are queued; counting all queued pods would read more rows."""
    first = f"SELECT 1 FROM {Pod._meta.db_table} WHERE cluster_id = %s AND queued LIMIT %s"  # noqa: S608
    found: int = fetch(f"SELECT count(*) FROM ({first}) AS first", [cluster.pk, count])[0][0]  # noqa: S608
    if found < count:
        _last_counts[cluster.pk] = found, time.monotonic()
    else:
        _last_counts.pop(cluster.pk, None)  # there may be more pods than were counted
    return found >= count


def was_queue_short(cluster: Cluster, count: int) -> bool:
    """Return True if this process has just counted the queue and found many fewer than `count` pods.

    The submissions of a live cluster are not counted in their transactions, so its queue is counted each time.
    """
    queued, at = _last_counts.get(cluster.pk, (count, 0.0))
    is_short = queued < count - _RESERVED_PODS and time.monotonic() - at < COUNTED_SECONDS
    return is_short and cluster.kind != ClusterKind.KUBERNETES


def _check_namespace(cluster: Cluster, namespace: str, coming: int) -> None:
    """Reject further pods of a namespace if too many are pending; the count includes the pods just written."""
    most = settings.HETSCHED_MOST_WAITING_PODS_PER_NAMESPACE
    # If the whole cluster has at most `most` queued pods, the namespace need not be counted. This check reads only an
    # index.
    if cluster.kind != ClusterKind.KUBERNETES and not has_queued(cluster, most + 1):
        return
    waiting = Pod.objects.filter(cluster=cluster, queued=True, namespace=namespace).count()
    if cluster.kind == ClusterKind.KUBERNETES:
        waiting += coming  # add these pods: they have no rows before the watch reports them
    if waiting > most:
        raise InputError(
            "NamespaceFull",
            Message(
                "{n} pods of namespace {namespace} are already pending in cluster {cluster}; the maximum is {m}",
                n=waiting - coming,
                namespace=namespace,
                cluster=cluster.name,
                m=most,
            ),
            place="manifest",
            hint="Try again later with the same Idempotency-Key, or submit fewer pods",
        )
