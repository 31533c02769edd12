"""Shadow mode: record bindings of another scheduler and compare them later with decisions on the earlier state.

A comparison takes as long as a scheduling cycle, and the informer must never wait for it.
The informer therefore only writes a row for each binding (`record_bound_pods`), as long as fewer than `MOST_DUE` rows
wait. A worker compares the rows in order on its own cached state (`PastState`), which lags behind the cluster.
Reservations store the revisions at which they began and ended, so the state just before the pod's reservation can be
restored. Reservations that ended in the same batch of changes are treated as ended before the pod's reservation. The
pods of one batch are assumed one after the other on their actual nodes. Node facts are the current ones. Each pod is
scheduled alone, under the cluster's policy, even if it belongs to a gang. A row is dropped and counted if too many rows
wait, the state or the node is not available any more, or the engine fails.
Invariants: each row is compared once; nothing else is written and no API server is called.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby
from typing import Any

import msgspec
import structlog
from django.conf import settings
from django.db.models import F
from django.utils import timezone

from hetsched.contracts.message import Message
from hetsched.contracts.objects.observed import ObservedPod
from hetsched.engine.explain.comparison import Comparison, compare
from hetsched.engine.framework.cycle import Scheduler
from hetsched.inventory.models import Cluster, Connection
from hetsched.journal import counters, metric_names
from hetsched.placement.cluster_snapshot import ClusterSnapshot, load_state
from hetsched.placement.models import Judgement, Reservation, Shadow
from hetsched.placement.models.reservations import CONTINUED
from hetsched.placement.scheduler_cache import SchedulerCache
from hetsched.policies.effective import active_specs
from hetsched.storage.write_lock import write_transaction

from .. import dispatch

MOST_DUE = 2000
AT_ONCE = 200
SECONDS = 2.0
log = structlog.get_logger(__name__)


def record_bound_pods(cluster: Cluster, scheduler: str, charged: Sequence[ObservedPod]) -> int:
    """Record pods that `scheduler` bound, in the transaction that reserves their resources; return how many."""
    found = [seen for seen in charged if seen.scheduler_name == scheduler and seen.spec is not None]
    if not found:
        return 0
    room = max(MOST_DUE - Shadow.objects.filter(cluster=cluster, judged_at=None).count(), 0)
    _drop(cluster.pk, len(found[room:]))
    now = timezone.now()
    rows = [
        Shadow(
            cluster=cluster,
            namespace=seen.namespace,
            pod_name=seen.name,
            uid=seen.uid,
            scheduler=scheduler,
            spec=msgspec.structs.replace(seen.spec, node_name="", allocation=None, gang=None),
            node_name=seen.node_name,
            revision=cluster.revision,
            created_at=now,
        )
        for seen in found[:room]
        if seen.spec is not None
    ]
    Shadow.objects.bulk_create(rows, batch_size=200, ignore_conflicts=True)
    dispatch.wake(cluster.pk, dispatch.SHADOW)
    return len(rows)


def has_pending_comparisons(cluster_id: int) -> bool:
    """Return True if pods wait for a comparison."""
    return Shadow.objects.filter(cluster_id=cluster_id, judged_at=None).exists()


def compare_pods(cluster_id: int, *, most: int = AT_ONCE, seconds: float = SECONDS) -> int:
    """Compare at most `most` waiting pods, the earliest first, for about `seconds`; return how many were processed."""
    rows = list(Shadow.objects.filter(cluster_id=cluster_id, judged_at=None).order_by("id")[:most])
    if not rows:
        return 0
    began, looked_at = time.monotonic(), 0
    past = _past_state(cluster_id)
    with past.lock:
        for revision, group in groupby(rows, key=lambda row: row.revision):
            some = list(group)
            loaded = past.at(revision - 1)
            if loaded is None:
                _give_up(cluster_id, some)
            else:
                _compare_group(past, loaded, revision, some)
            looked_at += len(some)
            if time.monotonic() - began > seconds:
                break
    return looked_at


def prune_comparisons(cluster_id: int) -> None:
    """Delete comparisons older than the retention period of finished workloads."""
    before = timezone.now() - timedelta(hours=settings.HETSCHED_KEEP_FINISHED_HOURS)
    Shadow.objects.filter(cluster_id=cluster_id, judged_at__lt=before).delete()


class PastState(SchedulerCache):
    """The state of a cluster at an earlier revision, cached in this process; hold `lock` while using it."""

    def __init__(self, cluster_id: int) -> None:
        super().__init__(cluster_id)
        self.lock = self._lock
        self._layout: list[int] = []

    def at(self, revision: int) -> ClusterSnapshot | None:
        """Return the state at a revision with the current nodes, or None if that state is not available any more."""
        rows = Cluster.objects.values_list("layout_revision", "definitions_revision", "forgotten_revision")
        *layout, forgotten = rows.get(pk=self.cluster_id)
        loaded = self._snapshot
        if (
            loaded is None
            or layout != self._layout
            or loaded.revision > revision
            or not self._apply_node_reports(loaded)
        ):
            if forgotten > revision:
                return None
            self.invalidate()
            loaded = self._snapshot = load_state(self.cluster_id, at_revision=revision)
            self._layout = layout
        if loaded.revision < revision and not self._catch_up(loaded, revision):
            self.invalidate()
            return None
        loaded.completed.complete(loaded.state)
        return loaded

    @contextmanager
    def between(self, loaded: ClusterSnapshot, revision: int) -> Iterator[dict[str, Reservation]]:
        """Remove the pods that ended at `revision`, and yield the reservations that began at `revision`, by pod uid.

        The state is restored at exit.
        """
        rows = Reservation.objects.filter(cluster_id=self.cluster_id).select_related("pod", "node")
        went = rows.filter(released_revision=revision, revision__lt=revision).exclude(release_reason__in=CONTINUED)
        removed = [placed for row in went if (placed := loaded.state.forget(row.pod.key)) is not None]
        before = set(loaded.state.placed_pods)
        try:
            yield {row.pod.uid: row for row in rows.filter(revision=revision)}
        finally:
            for key in [key for key in loaded.state.placed_pods if key not in before]:
                loaded.state.forget(key)
            for placed in removed:
                loaded.state.restore(placed)


_pasts: dict[int, PastState] = {}
_pasts_lock = threading.Lock()


def _past_state(cluster_id: int) -> PastState:
    with _pasts_lock:
        return _pasts.setdefault(cluster_id, PastState(cluster_id))


def _compare_group(past: PastState, loaded: ClusterSnapshot, revision: int, rows: Sequence[Shadow]) -> None:
    """Compare the pods reserved at a revision, in order; each is assumed on its node before the next is compared."""
    name = Cluster.objects.values_list("policy_name", flat=True).get(pk=past.cluster_id)
    spec = active_specs({name}).get(name)
    if spec is None:
        _give_up(past.cluster_id, rows)
        return
    with past.between(loaded, revision) as came:
        for row in rows:
            scheduler = past.scheduler(spec)
            state = scheduler.state
            if row.node_name not in state.row_of or row.spec.key in state.placed_pods:
                _give_up(past.cluster_id, [row])
                continue
            try:
                found = compare(scheduler, row.spec, row.node_name, top_nodes=settings.HETSCHED_TOP_NODES)
            except Exception:
                log.exception("shadow comparison failed", cluster=past.cluster_id, pod=row.key)
                past.invalidate()
                _give_up(past.cluster_id, rows[rows.index(row) :])
                return
            _write(row, found, scheduler)
            taken = came.get(row.uid)
            if taken is not None:
                state.assume(state.compile(taken.request), state.row_of[row.node_name], taken.allocation)


def _write(row: Shadow, found: Comparison, scheduler: Scheduler) -> None:
    policy = scheduler.policy.spec
    name = Cluster.objects.values_list("name", flat=True).get(pk=row.cluster_id)
    judgement = _judgement(row, found)
    Shadow.objects.filter(pk=row.pk, judged_at=None).update(
        judged_at=timezone.now(),
        judgement=judgement.value,
        chosen=found.chosen,
        their_score=found.their_score,
        our_score=found.our_score,
        regret=found.regret,
        rank=found.rank,
        feasible=found.feasible,
        refusal=found.refusal,
        theirs=found.theirs,
        top=found.top,
        policy_name=policy.name,
        policy_version=policy.version,
        summary=_sentence(row, found, judgement),
    )
    counters.add(metric_names.SHADOWS, name, judgement.value)


def _judgement(row: Shadow, found: Comparison) -> Judgement:
    if found.refusal is not None:
        return Judgement.INFEASIBLE
    if found.chosen == row.node_name:
        return Judgement.SAME
    return Judgement.WORSE if (found.regret or 0.0) > 0 else Judgement.EQUAL


_REJECTED = "{pod} is on {node}, which hetsched rejects: {detail}; hetsched chooses {choice} (score {ours})"
_REJECTED_EVERYWHERE = "{pod} is on {node}, which hetsched rejects: {detail}; hetsched chooses no node"
_COMPARED = {
    Judgement.SAME: "{pod} is on {node} (score {score}, rank {n} of {m}), the same node as hetsched",
    Judgement.EQUAL: (
        "{pod} is on {node} (score {score}, rank {n} of {m}), with the same score as {choice} (score {ours})"
    ),
    Judgement.WORSE: (
        "{pod} is on {node} (score {score}, rank {n} of {m}); hetsched chooses {choice} (score {ours}, "
        "{points} points higher)"
    ),
}


def _sentence(row: Shadow, found: Comparison, judgement: Judgement) -> Message:
    """Describe the result of a comparison in one sentence, with the scores of the nodes."""
    where: dict[str, Any] = {"pod": row.key, "node": row.node_name}
    if found.our_score is not None:
        where |= {"choice": found.chosen, "ours": f"{found.our_score:.1f}"}
    if found.refusal is not None:
        return Message(_REJECTED if "choice" in where else _REJECTED_EVERYWHERE, detail=found.refusal.message, **where)
    rank: dict[str, Any] = {"score": f"{found.their_score:.1f}", "n": found.rank, "m": found.feasible}
    if judgement is Judgement.WORSE:
        rank["points"] = f"{found.regret:.1f}"
    return Message(_COMPARED[judgement], **where, **rank)


def _give_up(cluster_id: int, rows: Sequence[Shadow]) -> None:
    """Drop rows that cannot be compared."""
    with write_transaction():
        deleted, _ = Shadow.objects.filter(pk__in=[row.pk for row in rows], judged_at=None).delete()
        _drop(cluster_id, deleted)


def _drop(cluster_id: int, count: int) -> None:
    if count:
        name = Cluster.objects.values_list("name", flat=True).get(pk=cluster_id)
        counters.add(metric_names.SHADOWS, name, "dropped", amount=count)
        Connection.objects.filter(cluster_id=cluster_id).update(shadow_dropped=F("shadow_dropped") + count)
