"""The active queue: which pending pods the scheduler tries next.

The default order is priority, then submission; other queue orders sort all pending pods as the policy defines. A
rejected pod is tried again only after a relevant event (see `unschedulable_pods`) and after its back-off (see
`backoff_queue`), so a few large pods do not fill every batch.
If one member of a gang is due, the batch contains all pending members; otherwise they might never be in the same batch.
Gangs are read whole, ordered by priority and then by the decision time that their namespaces used; namespaces
alternate. After `LONGEST_READ_SECONDS` the remaining gangs wait for the next batch.
If more pods are due than fit in one batch, the namespaces share the batch: at equal priority, the first pod of each
namespace precedes the second pod of any namespace. A flood of one namespace therefore delays the others by one batch. A
namespace whose decisions took more than a second of the last minute comes after others of equal priority (see
`decision_time`).
Specs have up to 256 KiB each, so they are read in queries of at most `PODS_PER_QUERY` pods, until
`LONGEST_READ_SECONDS` have passed. The same limit applies to the sort keys of other queue orders. The reading time is
added to the decision time of the pods' namespaces.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from heapq import nsmallest
from itertools import count
from types import MappingProxyType
from typing import Any

import msgspec
from django.db.models import Q, QuerySet, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from hetsched.contracts.documents import encode
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.framework.policy import Policy
from hetsched.inventory.node_loads import current_columns
from hetsched.storage.batches import batched
from hetsched.storage.hot_statements import DUE_PODS, PENDING_POD

from ..lifecycle import QUEUED
from ..models import Pod
from .decision_time import namespaces_over_share

LONGEST_READ_SECONDS = 0.5
PODS_PER_QUERY = 25  # pod specs per query
IN_SHADOW = Q(cluster__connection__shadow_of__gt="")  # pods of clusters in shadow mode
_QUEUED = sorted(state.value for state in QUEUED)

UsedSeconds = MutableMapping[str, float]  # seconds of decision time, by namespace


class PendingPod(msgspec.Struct, frozen=True):
    """A pending pod, with the columns that a decision needs."""

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


def active_pods(cluster_id: int) -> QuerySet[Pod]:
    return Pod.objects.filter(Pod.due(timezone.now()), cluster_id=cluster_id)


def has_active_pods(cluster_id: int) -> bool:
    """Return True if a pod of this cluster is due."""
    return bool(DUE_PODS(cluster=cluster_id, now=timezone.now(), limit=1))


def lowest_active_priority(cluster_id: int, most: int) -> int | None:
    """Return the lowest priority of the due pods of a cluster; None if there are none, or more than `most`."""
    rows = active_pods(cluster_id).order_by("-priority", "id").values_list("priority", flat=True)[: most + 1]
    priorities = list(rows)
    return priorities[-1] if 0 < len(priorities) <= most else None


def first_active_pods(
    cluster_id: int, policy: Policy | None, limit: int, used_seconds: UsedSeconds | None = None
) -> list[PendingPod]:
    """Return a superset of the first `limit` pods in the queue order of `policy`, sorted by submission.

    The reading time is added to `used_seconds`. If the queue order is that of the database index, only the first
    `limit` pods are read. If the order depends on earlier placements, the first `limit` pods of each namespace are
    read.
    """
    if policy is None or policy.sorts_by_priority:
        return _with_gangs(cluster_id, _first_by_priority(cluster_id, limit, used_seconds), used_seconds)
    if policy.follows_placements:
        return _with_gangs(
            cluster_id, _read_alternating(cluster_id, limit, used_seconds, each_namespace=True), used_seconds
        )
    return _first_by_sort_key(cluster_id, policy, limit, used_seconds)


def _first_by_priority(cluster_id: int, limit: int, used_seconds: UsedSeconds | None) -> list[PendingPod]:
    """Return the first due pods in index order; if more than `limit` are due, namespaces of one priority alternate."""
    first_read = min(limit, PODS_PER_QUERY)
    began = time.monotonic()
    found = [PendingPod(*row) for row in DUE_PODS(cluster=cluster_id, now=timezone.now(), limit=first_read)]
    _charge(used_seconds, [pod.spec for pod in found], time.monotonic() - began)
    if len(found) < first_read:
        return found
    return _read_alternating(
        cluster_id, limit, used_seconds, each_namespace=False, known={pod.pod_id: pod for pod in found}
    )


class _SortKeys(msgspec.Struct):
    """Sort keys of a cluster's pending pods under one policy, by pod id and priority."""

    spec: PolicySpec
    keys: dict[tuple[int, int], tuple[Any, ...]]


_orders: dict[int, _SortKeys] = {}


def _first_by_sort_key(
    cluster_id: int, policy: Policy, limit: int, used_seconds: UsedSeconds | None
) -> list[PendingPod]:
    """Return the first pods in the order of a policy whose sort key depends on one pod, and the rest of their gangs.

    If every batch read the spec of every pending pod, the total reading time would grow with the square of the queue
    length. The sort key of a pending pod changes only with its priority. Each spec is therefore read once, in order of
    priority with alternating namespaces. Specs that are not read within `LONGEST_READ_SECONDS` are read for the next
    batch.
    """
    rows = list(active_pods(cluster_id).order_by("id").values_list("id", "priority", "namespace"))
    known = _orders.get(cluster_id)
    keys = known.keys if known is not None and known.spec == policy.spec else {}
    found = {row[:2]: keys[row[:2]] for row in rows if row[:2] in keys}
    unread = [row for row in rows if row[:2] not in found]
    until = time.monotonic() + LONGEST_READ_SECONDS
    for batch in batched(
        alternate_namespaces(unread, {row[:2]: (-row[1], row[0]) for row in unread}, len(unread)), PODS_PER_QUERY
    ):
        began = time.monotonic()
        read = list(Pod.objects.filter(pk__in=batch).values_list("id", "priority", "spec"))
        found |= {(pk, priority): policy.sort_key(spec) for pk, priority, spec in read}
        _charge(used_seconds, [spec for *_, spec in read], time.monotonic() - began)
        if time.monotonic() > until:
            break
    _orders[cluster_id] = _SortKeys(policy.spec, found)
    # Pods that changed after their ids were read are missing here, or wait for the next batch.
    first = alternate_namespaces([row for row in rows if row[:2] in found], found, limit)
    pods, _ = _read(active_pods(cluster_id), [[pk] for pk in first], used_seconds)
    return _with_gangs(cluster_id, sorted(pods, key=lambda pod: pod.pod_id), used_seconds)


def alternate_namespaces(
    rows: list[tuple[int, int, str]], keys: dict[tuple[int, int], tuple[Any, ...]], limit: int
) -> list[int]:
    """Return the ids of the first `limit` pods of `rows` (id, priority, namespace), alternating between namespaces.

    `keys` maps id and priority of a pod to its sort key, whose first part is the priority. Among pods with an equal
    first part the namespaces alternate, each in the order of the key.
    """
    turn_numbers: dict[tuple[str, tuple[Any, ...]], count[int]] = defaultdict(count)
    ranked = []
    for place, (pk, priority, namespace) in enumerate(sorted(rows, key=lambda row: keys[row[:2]])):
        first = keys[pk, priority][:1]
        ranked.append((first, next(turn_numbers[namespace, first]), place, pk))
    return [pk for *_, pk in nsmallest(limit, ranked)]


def _read_alternating(
    cluster_id: int,
    limit: int,
    used_seconds: UsedSeconds | None,
    *,
    each_namespace: bool,
    known: Mapping[int, PendingPod] = MappingProxyType({}),
) -> list[PendingPod]:
    """Choose the first pods by alternating between namespaces, and return them in queue order.

    `limit` applies to all pods, or to each namespace if `each_namespace` is True.
    `known` contains by id the pods that need not be read again.
    """
    partition = ["namespace"] if each_namespace else ["namespace", "priority"]
    turn = Window(RowNumber(), partition_by=partition, order_by=["-priority", "id"])
    rows = active_pods(cluster_id).annotate(turn=turn)
    if each_namespace:
        ids = list(rows.filter(turn__lte=limit).order_by("turn", "-priority", "id").values_list("id", flat=True))
    else:
        ids = list(rows.order_by("-priority", "turn", "id").values_list("id", flat=True)[:limit])
    found, _ = _read(active_pods(cluster_id), [[pk] for pk in ids if pk not in known], used_seconds)
    found += [known[pk] for pk in ids if pk in known]
    return sorted(found, key=lambda pod: (-pod.spec.priority, pod.pod_id))


def _read(
    rows: QuerySet[Pod], units: Sequence[Sequence[int]], used_seconds: UsedSeconds | None
) -> tuple[list[PendingPod], int]:
    """Read groups of pods (ids) in this order until `LONGEST_READ_SECONDS` have passed; each group is read whole.

    Return those of the pods that are among `rows`, and the number of groups that were read, at least 1.
    """
    until = time.monotonic() + LONGEST_READ_SECONDS
    found: list[PendingPod] = []
    read = 0
    for batch in _grouped_units(units):
        for ids in batched([pk for unit in batch for pk in unit], PODS_PER_QUERY):
            began = time.monotonic()
            pods = {row[0]: PendingPod(*row) for row in rows.filter(pk__in=ids).values_list(*PENDING_POD)}
            _charge(used_seconds, [pod.spec for pod in pods.values()], time.monotonic() - began)
            found += [pods[pk] for pk in ids if pk in pods]
        read += len(batch)
        if time.monotonic() > until:
            break
    return found, read


def _charge(used_seconds: UsedSeconds | None, pods: Iterable[PodSpec], seconds: float) -> None:
    """Add the reading time of these pods to their namespaces, in proportion to the sizes of the pods."""
    if used_seconds is None:
        return
    sizes = [(pod.namespace, len(encode(pod))) for pod in pods]
    total = sum(size for _, size in sizes)
    for namespace, size in sizes:
        used_seconds[namespace] = used_seconds.get(namespace, 0.0) + seconds * size / total


def _grouped_units(units: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Yield lists of groups with at most `PODS_PER_QUERY` pods each; a larger group has its own list."""
    group: list[Sequence[int]] = []
    for unit in units:
        if group and sum(map(len, group)) + len(unit) > PODS_PER_QUERY:
            yield group
            group = []
        group.append(unit)
    if group:
        yield group


_Gang = tuple[str, str]  # namespace, name


def _gang_of(pod: PendingPod) -> _Gang | None:
    return None if pod.spec.gang is None else (pod.spec.namespace, pod.spec.gang.name)


def _with_gangs(cluster_id: int, found: list[PendingPod], used_seconds: UsedSeconds | None) -> list[PendingPod]:
    """Return these pods and the other pending members of their gangs, without the gangs that were not read in time."""
    gangs: dict[_Gang, list[PendingPod]] = defaultdict(list)
    for pod in found:
        gang = _gang_of(pod)
        if gang is not None:
            gangs[gang].append(pod)
    if not gangs:
        return found
    rows = Pod.objects.filter(cluster_id=cluster_id, state__in=_QUEUED).filter(Pod.images_known(timezone.now()))
    missing = _missing(rows, gangs)
    order = [gang for gang in _in_gang_order(cluster_id, gangs) if gang in missing]
    members, read = _read(rows, [missing[gang] for gang in order], used_seconds)
    unread = set(order[read:])
    return [pod for pod in found if _gang_of(pod) not in unread] + members


def _missing(rows: QuerySet[Pod], gangs: Mapping[_Gang, Sequence[PendingPod]]) -> dict[_Gang, list[int]]:
    """Return for each gang the ids of its members among `rows` that are not in `gangs`; omit complete gangs."""
    names: dict[str, list[str]] = defaultdict(list)
    for namespace, name in sorted(gangs):
        names[namespace].append(name)
    known = {pod.pod_id for pods in gangs.values() for pod in pods}
    found: dict[_Gang, list[int]] = defaultdict(list)
    for namespace, all_names in names.items():
        for batch in batched(all_names):
            members = rows.filter(namespace=namespace, gang__in=batch).order_by("-priority", "id")
            for pk, name in members.values_list("id", "gang"):
                if pk not in known:
                    found[namespace, name].append(pk)
    return found


def _in_gang_order(cluster_id: int, gangs: Mapping[_Gang, Sequence[PendingPod]]) -> list[_Gang]:
    """Return gangs by priority, then by the decision time that their namespaces used; namespaces alternate."""
    used = namespaces_over_share(current_columns(cluster_id).decision_time, timezone.now().timestamp())
    gang_of_pod: dict[int, _Gang] = {}
    rows, keys = [], {}
    for gang, pods in gangs.items():
        priority, pk = min((-pod.spec.priority, pod.pod_id) for pod in pods)
        gang_of_pod[pk] = gang
        rows.append((pk, -priority, gang[0]))
        keys[pk, -priority] = (priority, used.get(gang[0], 0.0)), pk
    return [gang_of_pod[pk] for pk in alternate_namespaces(rows, keys, len(rows))]
