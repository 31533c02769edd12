"""Which pods the scheduler looks at next.

Rule: priority, then submission order; other queue orders are the policy's own sort over all that waits. A pod that
did not fit waits for what may help it (see `retrying`), and a little longer after each try (1, 2, 4, 8, then 10 s), so
a few large pods do not eat every batch.
Where one member of a gang is due, all members that wait come with it, or they would miss each other for ever.
Where more is due than one batch takes, the namespaces share it: of equal priority, the first pod of each comes before
the second of any. So whoever floods the queue, or fills it with what never fits, keeps the others waiting for a batch
and not for all of theirs.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from functools import lru_cache
from heapq import nsmallest
from typing import Any

import msgspec
from django.db.models import Q, QuerySet, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from hetsched.contracts.policy import PolicySpec
from hetsched.contracts.workload import PodSpec
from hetsched.engine.framework.policy import Policy
from hetsched.storage.batches import parts
from hetsched.storage.prepared_queries import Given, Prepared

from .lifecycle import QUEUED
from .models import Pod

LONGEST_BACKOFF_SECONDS = 10
IN_SHADOW = Q(cluster__connection__shadow_of__gt="")  # pods of clusters that another scheduler decides for
_BY_PRIORITY = {"priority-sort", "gang-sort"}
_QUEUED = sorted(state.value for state in QUEUED)
_FIELDS = (
    "id", "workload_id", "spec", "policy", "policy_rule", "state", "attempts", "decision_id", "uid", "flushed",
    "hold_id",
)  # fmt: skip


class Waiting(msgspec.Struct, frozen=True):
    """One pod that waits, with what a decision about it needs."""

    pod_id: int
    workload_id: str | None
    spec: PodSpec
    policy: str
    policy_rule: str
    state: str
    attempts: int
    decision_id: int | None
    uid: str = ""
    flushed: bool = False
    hold_id: str | None = None


def backoff(attempts: int) -> timedelta:
    """Return how long a pod waits after its n-th unsuccessful try."""
    return timedelta(seconds=min(2 ** max(attempts - 1, 0), LONGEST_BACKOFF_SECONDS))


def due(now: datetime | Given | None = None) -> Q:
    """Return the condition for pods that the scheduler should look at by now."""
    now = now or timezone.now()
    return Q(queued=True) & (Q(not_before=None) | Q(not_before__lte=now)) & _images_known(now)


def _images_known(now: datetime | Given) -> Q:
    """Return the condition for pods that do not wait for what their images are built for."""
    return Q(images_until=None) | Q(images_until__lte=now)


def due_pods(cluster_id: int) -> QuerySet[Pod]:
    return Pod.objects.filter(due(), cluster_id=cluster_id)


def is_any_due(cluster_id: int) -> bool:
    """Tell whether the scheduler should look at a pod of this cluster by now."""
    return bool(_ANY_DUE(cluster=cluster_id, now=timezone.now()))


_ANY_DUE = Prepared(
    lambda: Pod.objects.filter(due(Given("now")), cluster=Given("cluster")).order_by().values_list("id", flat=True)[:1]
)


@lru_cache(maxsize=8)
def _first(limit: int) -> Prepared[Any]:
    """Return the query for the first pods to look at; the index has them in this order."""
    rows = Pod.objects.filter(due(Given("now")), cluster=Given("cluster")).order_by("-priority", "id")
    return Prepared(lambda: rows.values_list(*_FIELDS)[:limit])


def next_pods(cluster_id: int, policy: Policy | None, limit: int) -> list[Waiting]:
    """Return pods, in submission order, among which are the first `limit` in the order of `policy`.

    Where that order is the one that the database index has, no more are read; where it turns from namespace to
    namespace, the first ones of each.
    """
    if policy is None or _orders_by_priority(policy):
        found = waiting(cluster_id, limit)
        return found if len(found) < limit else waiting(cluster_id, limit, shared=True)
    if policy.follows_placements:
        return waiting(cluster_id, limit, each_namespace=True)
    return _first_of(cluster_id, policy, limit)


class _Order(msgspec.Struct):
    """The places of a cluster's waiting pods in the order of one policy, by id and priority."""

    spec: PolicySpec
    keys: dict[tuple[int, int], tuple[Any, ...]]


_orders: dict[int, _Order] = {}


def _first_of(cluster_id: int, policy: Policy, limit: int) -> list[Waiting]:
    """Return the first pods in the order of a policy that looks at each pod alone, and the rest of their gangs.

    To read every request anew for every batch costs the square of the queue; what a policy orders by does not change
    while a pod waits but for its priority, so each request is read once.
    """
    ids = list(due_pods(cluster_id).order_by("id").values_list("id", "priority"))
    known = _orders.get(cluster_id)
    keys = known.keys if known is not None and known.spec == policy.spec else {}
    found = {one: keys[one] for one in ids if one in keys}
    for some in parts([pk for pk, priority in ids if (pk, priority) not in found]):
        for pk, priority, spec in Pod.objects.filter(pk__in=some).values_list("id", "priority", "spec"):
            found[pk, priority] = policy.sort_key(spec)
    _orders[cluster_id] = _Order(policy.spec, found)
    # What changed since the ids were read is not there any more, or waits for the next batch.
    first = [pk for pk, _ in nsmallest(limit, (one for one in ids if one in found), key=found.__getitem__)]
    rows = {row[0]: Waiting(*row) for row in due_pods(cluster_id).filter(pk__in=first).values_list(*_FIELDS)}
    return _with_gangs(cluster_id, [rows[pk] for pk in sorted(first) if pk in rows])


def _orders_by_priority(policy: Policy) -> bool:
    """Tell whether the policy's queue order is the one that the database index has, apart from whole gangs."""
    return all(plugin.name in _BY_PRIORITY for plugin in policy.plugins if plugin.serves("queue-sort"))


def waiting(cluster_id: int, limit: int | None, *, each_namespace: bool = False, shared: bool = False) -> list[Waiting]:
    """Return the first pods to look at, in queue order, and the rest of their gangs; `limit` None for all of them.

    `each_namespace`: the first ones of every namespace, so that none hides behind another's flood. `shared`: of equal
    priority, namespaces take turns.
    """
    if limit is not None and shared:
        found = _in_turns(cluster_id, limit)
    elif limit is not None and not each_namespace:
        found = [Waiting(*row) for row in _first(limit)(cluster=cluster_id, now=timezone.now())]
    else:
        rows = due_pods(cluster_id)
        if limit is not None:
            place = Window(RowNumber(), partition_by="namespace", order_by=["-priority", "id"])
            rows = rows.annotate(place=place).filter(place__lte=limit)
        found = [Waiting(*row) for row in rows.order_by("-priority", "id").values_list(*_FIELDS)]
    return _with_gangs(cluster_id, found)


def _in_turns(cluster_id: int, limit: int) -> list[Waiting]:
    """Return the first pods where namespaces take turns, in queue order."""
    turn = Window(RowNumber(), partition_by=["namespace", "priority"], order_by="id")
    rows = due_pods(cluster_id).annotate(turn=turn).order_by("-priority", "turn", "id")
    ids = list(rows.values_list("id", flat=True)[:limit])
    found = [
        Waiting(*row) for some in parts(ids) for row in due_pods(cluster_id).filter(pk__in=some).values_list(*_FIELDS)
    ]
    return sorted(found, key=lambda pod: (-pod.spec.priority, pod.pod_id))


def _with_gangs(cluster_id: int, found: list[Waiting]) -> list[Waiting]:
    """Return these pods, and the members of their gangs that wait too."""
    gangs: dict[str, set[str]] = defaultdict(set)
    for pod in found:
        if pod.spec.gang is not None:
            gangs[pod.spec.namespace].add(pod.spec.gang.name)
    known = {pod.pod_id for pod in found}
    for namespace, names in gangs.items():
        gang_rows = Pod.objects.filter(cluster_id=cluster_id, namespace=namespace, state__in=_QUEUED)
        gang_rows = gang_rows.filter(_images_known(timezone.now()))
        for some in parts(sorted(names)):
            members = gang_rows.filter(gang__in=some).order_by("-priority", "id").values_list(*_FIELDS)
            found += [Waiting(*row) for row in members if row[0] not in known]
    return found
