"""Bind what was placed.

Rule: on a demo cluster binding always succeeds at once; an offline cluster's placements exist only here and stay as
they are; on a live cluster each placement is written to its API server, `AT_ONCE` at a time. The steps are short
transactions of their own, none of them open during a call. A run binds what it has itself made *binding*, so two runs
never do the same; what is *binding* for longer than `LEFT_AFTER` was left by a worker that died or by a fate unknown:
one run claims it for as long and binds it again, and what its first binding came to is found out that way. Whoever has
to bind begins no write after `WRITE_WITHIN`, nor once the cluster is out of step. A refusal frees the pod's room
only within `WRITE_WITHIN`. If the pod was tried before, it is read first; while it still waits, its fate is unknown for
`OUT_FOR`. A binding whose fate nobody knows keeps what it holds. Where wrong uids are not refused, that is told on the
connection, which puts the cluster out of step. A pod stays *binding* until its claims have their volumes, at most
`PATIENCE`; then it goes back to the queue. What a refusal means for a gang is said in `actions.gangs`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import chain

import msgspec
import structlog
from celery import shared_task
from django.db import transaction
from django.db.models import F, Q

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.binding import Bound, Fate, ToBind, bind, read_refused
from hetsched.adapters.kubernetes.device_allocation import allocate, release
from hetsched.adapters.kubernetes.volume_binding import provide
from hetsched.contracts.allocation import EMPTY, Allocation
from hetsched.contracts.workload import PodSpec
from hetsched.inventory.connections import api_of, in_shadow
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.inventory.node_events import in_step
from hetsched.journal import counters, figures
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict, begin_binding, confirm, reject, start
from hetsched.placement.actions.gangs import keep_gangs_whole
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod, Reservation
from hetsched.placement.signed_grants import granting
from hetsched.storage.prepared_queries import Among, Prepared
from hetsched.storage.snapshot_read import shared_now

PODS_PER_STEP = 500
BINDINGS_PER_STEP = 200
AT_ONCE = 16
LEFT_AFTER = timedelta(seconds=20)
WRITE_WITHIN = timedelta(seconds=15)
OUT_FOR = timedelta(minutes=3)  # longer than all tries of one write and what goes before them
MOST_TRIES = 3
PATIENCE = timedelta(minutes=10)
STEPS = ((State.PLACED, begin_binding), (State.BINDING, confirm), (State.BOUND, start))
ON_THEIR_WAY = {
    ClusterKind.DEMO.value: [state.value for state, _ in STEPS],
    ClusterKind.KUBERNETES.value: [State.PLACED.value, State.BINDING.value],
}
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.BIND)
def run(cluster_id: int) -> int:
    """Take what is placed further; return how many pods run (demo) or are bound (live) that were not before."""
    cluster = Cluster.objects.filter(pk=cluster_id).first()
    if cluster is None or cluster.kind == ClusterKind.OFFLINE or in_shadow(cluster_id):
        return 0
    return _pretend(cluster_id) if cluster.kind == ClusterKind.DEMO else _bind_all(cluster)


def unbound(cluster: Cluster) -> bool:
    """Tell whether a cluster has pods that a run would take further."""
    states = ON_THEIR_WAY.get(cluster.kind, [])
    return bool(states) and Pod.objects.filter(cluster=cluster, state__in=states).exists()


def _pretend(cluster_id: int) -> int:
    """Let everything placed on a demo cluster run."""
    started = 0
    for state, step in STEPS:
        while pods := _pods(cluster_id, state):
            try:
                moved = len(step(cluster_id, pods))
            except Conflict:
                break  # somebody else moves them on; the sweep looks again
            if state is State.BOUND:
                started += moved
    return started


def _pods(cluster_id: int, state: State) -> list[int]:
    rows = Pod.objects.filter(cluster_id=cluster_id, state=state.value).order_by("id")
    return list(rows.values_list("id", flat=True)[:PODS_PER_STEP])


# -- live clusters -----------------------------------------------------------------------------------------------------


def _bind_all(cluster: Cluster) -> int:
    """Write the placements of a live cluster; what is unknown at the end is left to the next run."""
    api, bound = api_of(cluster), 0
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="bind") as threads:
        for pods, tried in chain(_claimed(cluster), _left(cluster)):
            until = time.monotonic() + WRITE_WITHIN.total_seconds()
            is_ours = partial(_is_before, until)
            fates = list(threads.map(partial(write, api, cluster.name, is_ours=is_ours), to_bind(pods, tried=tried)))
            bound += note(cluster, fates)
    return bound


def _is_before(until: float) -> bool:
    return time.monotonic() < until


def _claimed(cluster: Cluster) -> Iterator[tuple[list[int], bool]]:
    """Make placed pods *binding*, part by part, and give those that nobody else has made so; none was tried."""
    lost = 0
    while lost < MOST_TRIES and in_step(cluster) and (pods := _pods(cluster.pk, State.PLACED)[:BINDINGS_PER_STEP]):
        try:
            with transaction.atomic():
                begin_binding(cluster.pk, pods)
                Pod.objects.filter(pk__in=pods).update(not_before=shared_now() + LEFT_AFTER)
        except Conflict:
            lost += 1  # another run took some of them
            continue
        lost = 0
        yield pods, False


def _left(cluster: Cluster) -> Iterator[tuple[list[int], bool]]:
    """Claim pods that have been *binding* for too long, part by part, and give them; all may have been tried."""
    last, now = 0, shared_now()
    left = Q(not_before=None, decided_at__lt=now - LEFT_AFTER) | Q(not_before__lte=now)
    rows = Pod.objects.filter(left, cluster=cluster, state=State.BINDING.value)
    while in_step(cluster):
        with transaction.atomic():
            part = rows.filter(pk__gt=last).order_by("id").select_for_update()
            pods = list(part.values_list("id", flat=True)[:BINDINGS_PER_STEP])
            Pod.objects.filter(pk__in=pods).update(not_before=shared_now() + LEFT_AFTER)
        if not pods:
            return
        last = pods[-1]
        yield pods, True


def write(api: Api, name: str, one: ToBind, *, is_ours: Callable[[], bool] = lambda: True) -> Bound:
    """Have the pod's volumes and devices, then bind it; say what became of it.

    `name` is the cluster's; `is_ours` tells, before each write and when one was refused, whether it still is.
    """
    if not is_ours():
        return Bound(one.pod_id, Fate.UNKNOWN, "it is not ours to bind any more")
    began = time.perf_counter()
    try:
        before = provide(api, one) or allocate(api, one)
        bound = before or bind(api, one, is_ours=is_ours)
        if bound.fate is Fate.REFUSED and (one.tried or not is_ours()):
            others = (one.out and before is None) or not is_ours()
            bound = read_refused(api, one, bound, waiting=Fate.UNKNOWN if others else Fate.REFUSED)
    except Exception as error:  # one odd pod or claim never keeps the others from being noted
        log.exception("a binding failed", cluster=name, namespace=one.namespace, pod=one.name)
        bound = Bound(one.pod_id, Fate.UNKNOWN, repr(error))
    if bound.fate is Fate.REFUSED and one.device_claims:
        # What cannot be taken back now stays with the claim, where everybody sees it.
        with suppress(ApiFailure):
            release(api, one)
    counters.observe(figures.BINDING_SECONDS, time.perf_counter() - began, name, bound.fate.value)
    if bound.read:
        counters.add(figures.READ_BACKS, name, bound.fate.value)
    return bound


def to_bind(pod_ids: Sequence[int], *, tried: bool = False) -> list[ToBind]:
    """Return what is to be written for these pods, each with what it holds; `tried`: perhaps not for the first time."""
    now = shared_now()
    held = Reservation.objects.filter(pod_id__in=pod_ids, active=True)
    epochs = dict(held.values_list("pod_id", "leader_epoch"))
    rows = Pod.objects.filter(pk__in=pod_ids, node__isnull=False).select_related("node").defer("node__report")
    found = []
    for pod in rows.annotate(in_cluster=F("cluster__name")).order_by("id"):
        assert pod.node is not None
        patient = pod.decided_at is None or pod.decided_at > now - PATIENCE
        out = tried and pod.decided_at is not None and pod.decided_at > now - OUT_FOR
        given, epoch = pod.allocation or EMPTY, epochs.get(pod.pk, 0)
        one = binding_of(pod.in_cluster, pod.pk, pod.uid, pod.spec, pod.node.name, given, epoch)
        named = {"namespace": pod.namespace, "name": pod.name}
        found.append(msgspec.structs.replace(one, **named, patient=patient, tried=tried, out=out))
    return found


def binding_of(
    cluster: str, pod_id: int, uid: str, spec: PodSpec, node: str, allocation: Allocation, epoch: int
) -> ToBind:
    """Return what is to be written for one pod, with what it holds."""
    told = granting(cluster, node, uid, spec, allocation, epoch)
    chosen = {grant.claim: grant.volume for grant in allocation.volumes}
    claims = tuple((use.name, chosen.get(use.name, "")) for use in spec.shape.claims)
    device_claims = tuple(use.claim for use in spec.shape.devices)
    return ToBind(pod_id, spec.namespace, spec.name, uid, node, told, claims, device_claims, allocation.devices)


def note(cluster: Cluster, fates: Sequence[Bound]) -> int:
    """Write what became of bindings. What is gone or somebody else's comes by the watch, which frees it by proof."""
    by_fate: dict[Fate, list[Bound]] = defaultdict(list)
    for one in fates:
        by_fate[one.fate].append(one)
    reasons: dict[str, list[int]] = defaultdict(list)
    for one in by_fate[Fate.REFUSED]:
        reasons[one.message[:500]].append(one.pod_id)
    act_on(cluster, confirm, [one.pod_id for one in by_fate[Fate.BOUND]])
    if by_fate[Fate.WAITING]:  # nothing was written: the next run may look at once
        pods = [one.pod_id for one in by_fate[Fate.WAITING]]
        Pod.objects.filter(pk__in=pods, state=State.BINDING.value).update(not_before=shared_now())
    for reason, pods in reasons.items():
        act_on(cluster, partial(reject, reason=reason), pods)
    for fate in (Fate.REFUSED, Fate.LOST, Fate.GONE):
        if by_fate[fate]:
            keep_gangs_whole(cluster.pk, [one.pod_id for one in by_fate[fate]], by_fate[fate][0].message)
    if by_fate[Fate.UNPROVEN]:
        Connection.objects.filter(cluster=cluster).update(failure=by_fate[Fate.UNPROVEN][0].message[:500])
    for fate in (Fate.LOST, Fate.GONE, Fate.UNKNOWN, Fate.UNPROVEN):
        if by_fate[fate]:
            some = by_fate[fate][0]
            log.info("bindings", cluster=cluster.name, fate=fate.value, pods=len(by_fate[fate]), reason=some.message)
    return len(by_fate[Fate.BOUND])


_BINDING = Prepared(
    lambda: (
        Pod.objects.filter(pk__in=Among("pods"), state=State.BINDING.value).order_by("id").values_list("id", flat=True)
    )
)


def act_on(cluster: Cluster, act: Callable[[int, list[int]], list[Pod]], pods: list[int]) -> None:
    """Act on those that are still *binding*, at once, or in the end one by one: the watch is often faster."""
    for _ in range(MOST_TRIES):
        pods = _BINDING(pods=pods)
        with suppress(Conflict):
            if pods:
                act(cluster.pk, pods)
            return
    for pod in pods:
        with suppress(Conflict):
            act(cluster.pk, [pod])
