"""The context of a response: the cluster, the pod's row, and the snapshot with the scheduler of the pod's policy.

If the cluster's data is incomplete or stale, every call fails; the `ignorable` setting of kube-scheduler decides
whether pods then wait or are scheduled without the extender.
Invariant: a failure while the snapshot is locked discards the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from django.db import connections

from hetsched.adapters.objects.pods import PodReader, ReferencedObjects
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec, is_ours
from hetsched.engine.framework.cycle import Scheduler
from hetsched.inventory.connections import is_in_shadow
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_events import is_synced
from hetsched.placement.actions.submissions import build_pod_rows
from hetsched.placement.cluster_snapshot import ClusterSnapshot
from hetsched.placement.models import Pod
from hetsched.placement.scheduler_cache import cache_of
from hetsched.policies.effective import active_specs

from .pod_slots import PodSlots


class RequestContext(msgspec.Struct, frozen=True):
    """The snapshot for one response, and the scheduler of the pod's policy on this snapshot."""

    snapshot: ClusterSnapshot
    spec: PolicySpec
    scheduler: Scheduler


class ExtenderCalls:
    """Base class of the calls for one cluster; each call must respond within `seconds`. Thread-safe."""

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self.cluster_id = cluster.pk
        self.seconds = seconds
        self.turns = PodSlots(seconds / 4)
        self._cache = cache_of(cluster.pk)
        self._names: tuple[tuple[int, int], ClusterContent, PodReader] | None = None

    def warm_up(self) -> None:
        """Load the snapshot, so that the first pod does not wait for the load."""
        with self._cache.locked_snapshot():
            pass

    def _cluster(self) -> tuple[Cluster, PodReader]:
        """Return the cluster, with its `definitions` from the cache, and the parser for its pods.

        Raises: InputError `ClusterNotInStep`, `ClusterInShadow`.
        """
        cluster = Cluster.objects.defer("definitions").get(pk=self.cluster_id)
        if is_in_shadow(self.cluster_id):
            message = f"cluster {cluster.name} is in shadow mode: hetsched makes no decisions for it"
            raise InputError("ClusterInShadow", message, hint="Remove the extender from the scheduler's configuration")
        if not is_synced(cluster):
            hint = "Check GET clusters/NAME/ or `hetsched cluster test NAME`"
            raise InputError(
                "ClusterNotInStep", f"the data of cluster {cluster.name} is incomplete or stale", hint=hint
            )
        known = self._names
        revisions = cluster.layout_revision, cluster.definitions_revision
        if known is None or known[0] != revisions:
            definitions = Cluster.objects.values_list("definitions", flat=True).get(pk=self.cluster_id)
            known = self._names = (revisions, definitions, PodReader(ReferencedObjects.of(definitions)))
        cluster.definitions = known[1]
        return cluster, known[2]

    def _pod(self, cluster: Cluster, spec: PodSpec) -> Pod:
        """Return the unsaved row of a pod of another scheduler.

        Raises: InputError `PodIsOurs`.
        """
        if is_ours(spec.scheduler_name):
            message = f"{spec.key} has schedulerName {spec.scheduler_name}: hetsched schedules this pod itself"
            raise InputError("PodIsOurs", message, hint="Rename the profile of the other scheduler")
        (pod,) = build_pod_rows(cluster, [spec], "", None, Pod.ASKED)
        return pod

    @contextmanager
    def _asking(self, pod: Pod, until: float) -> Iterator[RequestContext]:
        """Lock the snapshot and yield it with the scheduler of the pod's policy.

        Raises: InputError `ExtenderBusy`, `PolicyUnknown`.
        """
        spec = active_specs({pod.policy}).get(pod.policy)
        if spec is None:
            raise InputError("PolicyUnknown", Message("policy {policy} has no active version", policy=repr(pod.policy)))
        try:
            with self._cache.locked_snapshot(max(until - time.monotonic(), 0)) as snapshot:
                try:
                    if self._cache.policy(spec).wants_mix:
                        snapshot.state.use_mix(snapshot.state.placed_mix())
                    yield RequestContext(snapshot, spec, self._cache.scheduler(spec))
                except InputError:
                    raise
                except Exception:
                    self._cache.invalidate()  # discard the snapshot: the failed call may have left it inconsistent
                    raise
        except TimeoutError:
            raise InputError("ExtenderBusy", "the scheduler cache is in use by other requests") from None


def close_expired_connections() -> None:
    """Close this thread's unusable or expired database connections, except inside a transaction of the caller."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
