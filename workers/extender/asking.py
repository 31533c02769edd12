"""What every answer is made of: the cluster, the pod as a row, and the state with the scheduler of the pod's policy.

Rule: where the cluster is not known whole and fresh nothing is answered but an error, and the scheduler's own
configuration (`ignorable`) says whether its pods wait or go on without us.
Invariant: whatever fails while the state is held, the state goes with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from django.db import connections

from hetsched.adapters.objects.pods import Names, PodReader
from hetsched.contracts.cluster import ClusterContent
from hetsched.contracts.errors import InputError
from hetsched.contracts.policy import PolicySpec
from hetsched.contracts.workload import PodSpec, is_ours
from hetsched.engine.framework.cycle import Scheduler
from hetsched.inventory.connections import in_shadow
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_events import in_step
from hetsched.placement.actions.submissions import prepare
from hetsched.placement.models import Pod
from hetsched.placement.snapshot import Loaded, warm
from hetsched.policies.effective import active_specs

from .turns import Turns


class Asking(msgspec.Struct, frozen=True):
    """The state, and the scheduler of the pod's policy on it, for the time of one answer."""

    loaded: Loaded
    spec: PolicySpec
    scheduler: Scheduler


class Asker:
    """Asks for one cluster within `seconds`, from several threads."""

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self.cluster_id = cluster.pk
        self.seconds = seconds
        self.turns = Turns(seconds / 4)
        self._warm = warm(cluster.pk)
        self._names: tuple[tuple[int, int], ClusterContent, PodReader] | None = None

    def warm_up(self) -> None:
        """Fold the state, so that the first pod does not wait for it."""
        with self._warm.held():
            pass

    def _cluster(self) -> tuple[Cluster, PodReader]:
        """Return the cluster with its definitions, and who reads its pods.

        Raises: InputError `ClusterNotInStep`, `ClusterInShadow`.
        """
        cluster = Cluster.objects.defer("definitions").get(pk=self.cluster_id)
        if in_shadow(self.cluster_id):
            message = f"cluster {cluster.name} is followed in shadow: nothing is decided for it"
            raise InputError("ClusterInShadow", message, hint="Take the extender out of the scheduler's configuration")
        if not in_step(cluster):
            hint = "GET clusters/NAME/ and `hetsched cluster test NAME` say why"
            raise InputError("ClusterNotInStep", f"cluster {cluster.name} is not known whole and fresh", hint=hint)
        known = self._names
        revisions = cluster.layout_revision, cluster.definitions_revision
        if known is None or known[0] != revisions:
            definitions = Cluster.objects.values_list("definitions", flat=True).get(pk=self.cluster_id)
            known = self._names = (revisions, definitions, PodReader(Names.of(definitions)))
        cluster.definitions = known[1]
        return cluster, known[2]

    def _pod(self, cluster: Cluster, spec: PodSpec) -> Pod:
        """Return the row, unsaved, of a pod that another scheduler asks about.

        Raises: InputError `PodIsOurs`.
        """
        if is_ours(spec.scheduler_name):
            message = f"{spec.key} has schedulerName {spec.scheduler_name}: hetsched places it by itself"
            raise InputError("PodIsOurs", message, hint="Give the other scheduler's profile another name")
        (pod,) = prepare(cluster, [spec], "", None, Pod.ASKED)
        return pod

    @contextmanager
    def _asking(self, pod: Pod, until: float) -> Iterator[Asking]:
        """Give the state and the scheduler of the pod's policy. Raises: InputError `ExtenderBusy`, `PolicyUnknown`."""
        spec = active_specs({pod.policy}).get(pod.policy)
        if spec is None:
            raise InputError("PolicyUnknown", f"policy {pod.policy!r} has no active version")
        try:
            with self._warm.held(max(until - time.monotonic(), 0)) as loaded:
                try:
                    if self._warm.policy(spec).wants_mix:
                        loaded.state.use_mix(loaded.state.booked_mix())
                    yield Asking(loaded, spec, self._warm.scheduler(spec))
                except InputError:
                    raise
                except Exception:
                    self._warm.forget()  # whatever it left behind goes with the state
                    raise
        except TimeoutError:
            raise InputError("ExtenderBusy", "the state is in use by other answers") from None


def give_connections_back() -> None:
    """End what this thread holds of the database, except inside somebody else's transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
