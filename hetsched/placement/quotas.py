"""What submitters and namespaces may not exceed, counted where it is written.

Problem: two submissions that each fit into what is left, at the same moment, do not both fit.
Rule: a submission is written first and counted then, in its transaction: it takes the locks of what it is counted
against, in the order of their names, and sums up what all that committed before it hold with its own. What is too
much is undone with everything else. The locks are held from there to the commit, which is next; whoever writes several
submissions at once takes them all before. A workload is charged whole until it is over, a hold until it ends: whole, or
as far as it is more than the workload that claimed it.
Invariant: at every commit what an owner with a quota has submitted or holds is no more than the quota, whatever raced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db.models import Q

from hetsched.contracts.allowance import GPU_MILLI, PODS, Allowance
from hetsched.contracts.errors import InputError
from hetsched.contracts.units import format_amount
from hetsched.contracts.workload import PodSpec
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.storage.named_locks import lock
from hetsched.storage.prepared_queries import Given, Prepared

from .lifecycle import FINISHED
from .models import Charge, Hold, Pod, Workload

_OVER = sorted(state.value for state in FINISHED)


def check_ceiling(allowance: Allowance, pods: Iterable[PodSpec], priority: int | None) -> None:
    """Refuse pods that are more important than their submitter may make them.

    Raises: InputError `PriorityNotAllowed`.
    """
    most = allowance.priority
    if most is None:
        return
    highest = priority if priority is not None else max((pod.priority for pod in pods), default=most)
    if highest > most:
        raise InputError(
            "PriorityNotAllowed",
            f"priority {highest} is higher than {most}, the highest for this token",
            place="priority",
            hint="Ask for a lower priority, or for another token",
        )


def keep_within(
    cluster: Cluster, charged: Sequence[tuple[Workload, Sequence[PodSpec]]], owner: str, allowance: Allowance
) -> None:
    """Count workloads just written against the bounds of their owner and their namespaces.

    Raises: InputError `QuotaTooSmall` where they would never fit, `QuotaExceeded`, `NamespaceFull`.
    """
    namespaces = Counter(pod.namespace for _, pods in charged for pod in pods)
    lock(names_of(cluster.pk, namespaces, owner if allowance.most else ""))
    if allowance.most:
        _charge(charged, owner, allowance.most)
    for name in sorted(namespaces):
        _check_namespace(cluster, name, namespaces[name])


def names_of(cluster_id: int, namespaces: Iterable[str], owner: str = "") -> set[str]:
    """Return the names of the locks under which submissions to these namespaces, and of this owner, are counted."""
    return {f"namespace {cluster_id} {name}" for name in namespaces} | ({f"owner {owner}"} if owner else set())


def _charge(charged: Sequence[tuple[Workload, Sequence[PodSpec]]], owner: str, most: Mapping[str, int]) -> None:
    same = {"owner": owner, "bounds": dict(most)}
    own = [Charge(workload=workload, amounts=_asked(pods, most), **same) for workload, pods in charged]
    wanted: Counter[str] = Counter()
    for charge in own:
        wanted.update(charge.amounts)
    _check_bounds(wanted, most)
    Charge.objects.bulk_create(own)
    _check_owner(owner, most, wanted)


def keep_hold_within(hold: Hold, pods: Sequence[PodSpec], allowance: Allowance) -> None:
    """Count a hold just written against the bounds of its owner: room is room, whether pods are in it or not.

    Raises: InputError `PriorityNotAllowed`, `QuotaTooSmall`, `QuotaExceeded`.
    """
    check_ceiling(allowance, pods, None)
    if not allowance.most:
        return
    lock(names_of(hold.cluster_id, (), hold.owner))
    hold.amounts = _asked(pods, allowance.most)
    _check_bounds(hold.amounts, allowance.most)
    hold.save(update_fields=["amounts"])
    _check_owner(hold.owner, allowance.most, hold.amounts)


def _check_bounds(wanted: Mapping[str, int], most: Mapping[str, int]) -> None:
    for name, bound in most.items():
        if wanted[name] > bound:
            raise InputError("QuotaTooSmall", _over(name, bound, wanted[name], 0), place=name, hint="Ask for less")


def _check_owner(owner: str, most: Mapping[str, int], wanted: Mapping[str, int]) -> None:
    """Refuse what an owner's workloads and holds, those just written among them, come to beyond the quota."""
    held: Counter[str] = Counter()
    rows = Charge.objects.filter(owner=owner).exclude(workload__state__in=_OVER)
    charged: dict[str, dict[str, int]] = dict(rows.values_list("workload_id", "amounts"))
    # What somebody else claimed, as an operator may, is the owner's no more.
    kept = Hold.objects.filter(Q(state=Hold.HELD) | Q(state=Hold.CLAIMED, workload__owner=owner), owner=owner)
    for claimed_by, amounts in kept.values_list("workload_id", "amounts"):
        own = charged.get(claimed_by, {})
        held.update({name: max(0, amount - own.get(name, 0)) for name, amount in amounts.items()})
    for amounts in charged.values():
        held.update(amounts)
    for name, bound in most.items():
        if held[name] > bound:
            text = _over(name, bound, wanted[name], held[name] - wanted[name])
            raise InputError("QuotaExceeded", text, place=name, hint="Wait until workloads end, or cancel some")


def _over(name: str, bound: int, wanted: int, held: int) -> str:
    asked, most, there = (format_amount(name, amount) for amount in (wanted, bound, held))
    return f"{asked} of {name} are asked for, {there} are held already, and the quota of this token is {most}"


def _asked(pods: Sequence[PodSpec], names: Iterable[str]) -> dict[str, int]:
    """Return what pods ask for of some resources."""
    found = {}
    for name in names:
        if name == PODS:
            found[name] = len(pods)
        elif name == GPU_MILLI:
            found[name] = sum(pod.shape.gpu.count * pod.shape.gpu.milli for pod in pods if pod.shape.gpu is not None)
        else:
            found[name] = sum(pod.shape.request(name) for pod in pods)
    return found


@lru_cache(maxsize=8)
def _beyond(most: int) -> Prepared[Any]:
    """Return the query for a pod that waits beyond so many others, whatever the order."""
    rows = Pod.objects.filter(cluster=Given("cluster"), queued=True).order_by().values_list("id", flat=True)
    return Prepared(lambda: rows[most : most + 1])


def _check_namespace(cluster: Cluster, namespace: str, coming: int) -> None:
    """Refuse more pods of one namespace than may wait. Pods that are written already count themselves."""
    most = settings.HETSCHED_MOST_WAITING_PODS_PER_NAMESPACE
    # Where the whole cluster has no more, nobody has to count a namespace: the index alone tells that much.
    if cluster.kind != ClusterKind.KUBERNETES and not _beyond(most)(cluster=cluster.pk):
        return
    waiting = Pod.objects.filter(cluster=cluster, queued=True, namespace=namespace).count()
    if cluster.kind == ClusterKind.KUBERNETES:
        waiting += coming  # these come in by the watch, once they are made
    if waiting > most:
        raise InputError(
            "NamespaceFull",
            f"{waiting - coming} pods of namespace {namespace} wait in cluster {cluster.name} already, {most} may",
            place="manifest",
            hint="Try again later with the same Idempotency-Key, or submit fewer pods",
        )
