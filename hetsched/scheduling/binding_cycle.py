"""The binding cycle: bind placed pods.

In a demo cluster every binding succeeds immediately, and placements of an offline cluster are not bound. In a live
cluster each placement is written to the API server, `AT_ONCE` in parallel. Every step is a short transaction, and no
transaction is open during an API call.
A run binds only pods that it moved to *binding* itself, so two runs never bind the same pod. A pod that is *binding*
for longer than `CLAIM_AFTER` was left by a worker that died or has a binding with an unknown result: one run claims the
pod for another `CLAIM_AFTER` and binds it again, which also reveals the result of the first attempt. No write starts
later than `WRITE_WITHIN` after the claim, nor while the cluster is out of sync.
If a first attempt is rejected within `WRITE_WITHIN`, the reservation is freed. If the rejection is later, or the
attempt is a retry, the pod is read back. If the pod is still pending, the result is unknown: after a late rejection in
every case, after a retry until `UNKNOWN_FOR` after the decision. A binding with an unknown result keeps its
reservation.
If the API server accepts bindings with wrong uids, the failure is recorded on the connection, which puts the cluster
out of sync.
A pod stays *binding* until its claims have volumes; after `VOLUME_TIMEOUT` it returns to the queue. `actions.gangs`
defines the effect of a rejection on a gang.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import chain

import msgspec
import structlog
from django.db.models import F, Q

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.devices.allocation import allocate, release
from hetsched.adapters.kubernetes.devices.extended_claims import delete_extended_claim
from hetsched.adapters.kubernetes.pods.binding import (
    BindingOutcome,
    BindingRequest,
    BindingResult,
    bind,
    is_proven,
    read_refused,
    unassigned,
)
from hetsched.adapters.kubernetes.pods.volume_binding import provide
from hetsched.contracts.message import Message, shortened, verbatim
from hetsched.contracts.objects.allocation import EMPTY, Allocation
from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.connections import api_of, is_in_shadow
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.inventory.node_events import is_synced
from hetsched.journal import counters, metric_names
from hetsched.placement.actions import Conflict, begin_binding, confirm, reject, start
from hetsched.placement.actions.gangs import recover_gangs
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod, Reservation
from hetsched.placement.signed_grants import grant_annotations
from hetsched.storage.batches import batched
from hetsched.storage.snapshot_read import database_now
from hetsched.storage.write_lock import write_transaction

PODS_PER_STEP = 500
BINDINGS_PER_STEP = 200
AT_ONCE = 16
CLAIM_AFTER = timedelta(seconds=20)
WRITE_WITHIN = timedelta(seconds=15)
UNKNOWN_FOR = timedelta(minutes=3)  # longer than all tries of one write and the API calls before them
MOST_TRIES = 3
VOLUME_TIMEOUT = timedelta(minutes=10)
STEPS = ((State.PLACED, begin_binding), (State.BINDING, confirm), (State.BOUND, start))
UNFINISHED_STATES = {
    ClusterKind.DEMO.value: [state.value for state, _ in STEPS],
    ClusterKind.KUBERNETES.value: [State.PLACED.value, State.BINDING.value],
}
log = structlog.get_logger(__name__)


def run(cluster_id: int) -> int:
    """Move placed pods towards *running* (demo) or *bound* (live); return how many reached that state."""
    cluster = Cluster.objects.filter(pk=cluster_id).first()
    if cluster is None or cluster.kind == ClusterKind.OFFLINE or is_in_shadow(cluster_id):
        return 0
    return _start_demo_pods(cluster_id) if cluster.kind == ClusterKind.DEMO else _bind_all(cluster)


def has_unbound_pods(cluster: Cluster) -> bool:
    """Return True if a cluster has pods that a run would advance."""
    states = UNFINISHED_STATES.get(cluster.kind, [])
    return bool(states) and Pod.objects.filter(cluster=cluster, state__in=states).exists()


def _start_demo_pods(cluster_id: int) -> int:
    """Start every placed pod of a demo cluster."""
    started = 0
    for state, step in STEPS:
        while pods := _pods(cluster_id, state):
            try:
                step(cluster_id, pods)
            except Conflict:
                break  # another process advanced the pods; the next periodic run checks them again
            if state is State.BOUND:
                started += len(pods)
    return started


def _pods(cluster_id: int, state: State) -> list[int]:
    rows = Pod.objects.filter(cluster_id=cluster_id, state=state.value).order_by("id")
    return list(rows.values_list("id", flat=True)[:PODS_PER_STEP])


# -- live clusters -----------------------------------------------------------------------------------------------------


def _bind_all(cluster: Cluster) -> int:
    """Write the placements of a live cluster; return how many pods were bound. The next run handles unknown results."""
    api, bound = api_of(cluster), 0
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="bind") as threads:
        for pods, tried in chain(_claimed(cluster), _overdue_bindings(cluster)):
            until = time.monotonic() + WRITE_WITHIN.total_seconds()
            is_ours = partial(_is_before, until)
            outcomes = list(
                threads.map(partial(write, api, cluster.name, is_ours=is_ours), binding_requests(pods, tried=tried))
            )
            bound += record_results(cluster, outcomes)
    return bound


def _is_before(until: float) -> bool:
    return time.monotonic() < until


def _claimed(cluster: Cluster) -> Iterator[tuple[list[int], bool]]:
    """Claim placed pods by moving them to *binding*; yield (pod IDs, False) per batch: these are first attempts."""
    lost = 0
    while lost < MOST_TRIES and is_synced(cluster) and (pods := _pods(cluster.pk, State.PLACED)[:BINDINGS_PER_STEP]):
        try:
            with write_transaction():
                begin_binding(cluster.pk, pods)
                Pod.objects.filter(pk__in=pods).update(not_before=database_now() + CLAIM_AFTER)
        except Conflict:
            lost += 1  # another run claimed some of the pods
            continue
        lost = 0
        yield pods, False


def _overdue_bindings(cluster: Cluster) -> Iterator[tuple[list[int], bool]]:
    """Claim pods that have been *binding* for too long; yield (pod IDs, True) per batch: these may be retries."""
    last, now = 0, database_now()
    left = Q(not_before=None, decided_at__lt=now - CLAIM_AFTER) | Q(not_before__lte=now)
    rows = Pod.objects.filter(left, cluster=cluster, state=State.BINDING.value)
    while is_synced(cluster):
        with write_transaction():
            part = rows.filter(pk__gt=last).order_by("id").select_for_update()
            pods = list(part.values_list("id", flat=True)[:BINDINGS_PER_STEP])
            Pod.objects.filter(pk__in=pods).update(not_before=database_now() + CLAIM_AFTER)
        if not pods:
            return
        last = pods[-1]
        yield pods, True


def needs_one_call(api: Api, request: BindingRequest) -> bool:
    """Return True if a pod without volumes and devices is bound through a proven API server."""
    return is_proven(api) and not (request.claims or request.device_claims or request.extended)


def write(
    api: Api,
    name: str,
    request: BindingRequest,
    *,
    is_ours: Callable[[], bool] = lambda: True,
    first_failure: ApiFailure | None = None,
) -> BindingOutcome:
    """Provide the pod's volumes and devices, bind it, and return the result.

    `name` is the cluster's name. `is_ours` returns True while this process may bind the pod; it is called before each
    write and after a rejection. `first_failure` is the failure of the first attempt if it was made already.
    """
    if first_failure is None and not is_ours():
        return unassigned(request)
    began = time.perf_counter()
    try:
        before = None if first_failure else provide(api, request) or allocate(api, request, is_ours=is_ours)
        bound = before or bind(api, request, is_ours=is_ours, first_failure=first_failure)
        if bound.result is BindingResult.REFUSED and (request.tried or not is_ours()):
            others = (request.in_flight and before is None) or not is_ours()
            bound = read_refused(
                api, request, bound, waiting=BindingResult.UNKNOWN if others else BindingResult.REFUSED
            )
    except Exception as error:  # one malformed pod or claim must not block the other results
        log.exception("binding failed", cluster=name, namespace=request.namespace, pod=request.name)
        bound = BindingOutcome(request.pod_id, BindingResult.UNKNOWN, repr(error))
    _release_devices(api, request, bound.result)
    note_time(name, time.perf_counter() - began, bound.result)
    if bound.read:
        counters.add(metric_names.READ_BACKS, name, bound.result.value)
    return bound


def note_time(name: str, seconds: float, result: BindingResult) -> None:
    """Record how long the binding of a pod took; `name` is the cluster's name."""
    counters.observe(metric_names.BINDING_SECONDS, seconds, name, result.value)


def _release_devices(api: Api, request: BindingRequest, result: BindingResult) -> None:
    """Release the devices of a pod that this binding did not bind.

    A controller releases the claims of a pod that was deleted or bound to another node, but it cannot know that the
    claim for extended resources is no longer needed. A later decision may have replaced this claim.
    """
    # Ignore a failed release: the allocation stays visible in the claim's status.
    with suppress(ApiFailure):
        if result is BindingResult.REFUSED:
            release(api, request)
        elif result in (BindingResult.GONE, BindingResult.LOST) and request.extended is not None:
            delete_extended_claim(api, request, request.extended)


def binding_requests(pod_ids: Sequence[int], *, tried: bool = False) -> list[BindingRequest]:
    """Return the bindings to write for these pods, with allocations; `tried` is True if this may be a retry."""
    now = database_now()
    reservations = Reservation.objects.filter(pod_id__in=pod_ids, active=True)
    epochs = dict(reservations.values_list("pod_id", "leader_epoch"))
    rows = Pod.objects.filter(pk__in=pod_ids, node__isnull=False).select_related("node").defer("node__report")
    found = []
    for pod in rows.annotate(in_cluster=F("cluster__name")).order_by("id"):
        assert pod.node is not None
        may_wait = pod.decided_at is None or pod.decided_at > now - VOLUME_TIMEOUT
        in_flight = tried and pod.decided_at is not None and pod.decided_at > now - UNKNOWN_FOR
        allocation, epoch = pod.allocation or EMPTY, epochs.get(pod.pk, 0)
        request = binding_request(pod.in_cluster, pod.pk, pod.uid, pod.spec, pod.node.name, allocation, epoch)
        named = {"namespace": pod.namespace, "name": pod.name}
        found.append(msgspec.structs.replace(request, **named, may_wait=may_wait, tried=tried, in_flight=in_flight))
    return found


def binding_request(
    cluster: str, pod_id: int, uid: str, spec: PodSpec, node: str, allocation: Allocation, epoch: int
) -> BindingRequest:
    """Return the binding to write for one pod, with its allocation."""
    grants = grant_annotations(cluster, node, uid, spec, allocation, epoch)
    chosen = {grant.claim: grant.volume for grant in allocation.volumes}
    claims = tuple((use.name, chosen.get(use.name, "")) for use in spec.shape.claims)
    device_claims = tuple(use.claim for use in spec.shape.devices)
    return BindingRequest(
        pod_id, spec.namespace, spec.name, uid, node, grants, claims, device_claims, allocation.devices,
        allocation.extended or None,
    )  # fmt: skip


def record_results(cluster: Cluster, outcomes: Sequence[BindingOutcome]) -> int:
    """Record binding results; return how many pods were bound.

    The resources of pods that were deleted or bound by another scheduler are freed when the watch reports that event.
    """
    by_result: dict[BindingResult, list[BindingOutcome]] = defaultdict(list)
    for outcome in outcomes:
        by_result[outcome.result].append(outcome)
    reasons, waits = _by_message(by_result[BindingResult.REFUSED]), _by_message(by_result[BindingResult.WAITING])
    apply_while_binding(cluster, confirm, [outcome.pod_id for outcome in by_result[BindingResult.BOUND]])
    for message, pods in waits.items():  # no binding was written, so the next run may retry immediately
        waiting = Pod.objects.filter(pk__in=pods, state=State.BINDING.value)
        waiting.update(not_before=database_now(), message=message)
    for reason, pods in reasons.items():
        apply_while_binding(cluster, partial(reject, reason=reason), pods)
    for result in (BindingResult.REFUSED, BindingResult.LOST, BindingResult.GONE):
        if by_result[result]:
            recover_gangs(cluster.pk, [outcome.pod_id for outcome in by_result[result]], by_result[result][0].message)
    if by_result[BindingResult.UNPROVEN]:
        failure = shortened(by_result[BindingResult.UNPROVEN][0].message, 500)
        Connection.objects.filter(cluster=cluster).update(failure=failure)
    for result in (BindingResult.LOST, BindingResult.GONE, BindingResult.UNKNOWN, BindingResult.UNPROVEN):
        if by_result[result]:
            some = by_result[result][0]
            log.info(
                "bindings", cluster=cluster.name, result=result.value, pods=len(by_result[result]), reason=some.message
            )
    return len(by_result[BindingResult.BOUND])


def _by_message(outcomes: Iterable[BindingOutcome]) -> dict[Message, list[int]]:
    """Return the ids of the pods by message."""
    found: dict[Message, list[int]] = defaultdict(list)
    for outcome in outcomes:
        found[verbatim(outcome.message)].append(outcome.pod_id)
    return found


def apply_while_binding(cluster: Cluster, act: Callable[[int, list[int]], object], pods: list[int]) -> None:
    """Apply `act` to the pods that are still *binding*; the watch has often moved some of them already.

    After `MOST_TRIES` conflicts on the whole list, apply it to the pods one by one.
    """
    for _ in range(MOST_TRIES):
        rows = Pod.objects.filter(state=State.BINDING.value).order_by("id").values_list("id", flat=True)
        pods = [pk for some in batched(pods) for pk in rows.filter(pk__in=some)]
        with suppress(Conflict):
            if pods:
                act(cluster.pk, pods)
            return
    for pod in pods:
        with suppress(Conflict):
            act(cluster.pk, [pod])
