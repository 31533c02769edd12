"""Advice about a cluster: moves of pods that the engine finds on the current state.

The state is a copy of the scheduler cache. Pods that are being bound, nominated or evicted are not moved. Each pod is
placed by the active version of its own policy. In clusters that are not live, evicted pods are scheduled again even if
they have no controller.
Invariant: nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from django.db.models import Q
from django.utils import timezone

from hetsched.contracts.api.advice import Advice, Question
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.times import rfc3339
from hetsched.engine.framework.policy import Policy
from hetsched.engine.simulation.advice import advise
from hetsched.engine.simulation.moves import Board
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.placement.lifecycle import HOLDING, State
from hetsched.placement.models import Eviction, Nomination, Pod, Workload
from hetsched.placement.scheduler_cache import cache_of
from hetsched.policies.effective import Chooser, active_specs
from hetsched.storage.batches import batched

MOST_WAITING = 200
BUSY = "Busy"
# Pods in these states can be moved; offline clusters add `placed`, because no pod is bound there.
_SETTLED = frozenset({State.BOUND.value, State.RUNNING.value})


class AdviceBasis(msgspec.Struct, frozen=True):
    """A `Board` on a copy of a cluster's state, the state's revision and digest, and the pods that must not move."""

    board: Board
    revision: int
    snapshot: str
    node_ids: dict[str, int]
    kept: dict[str, str]
    own: dict[str, Policy]


def reschedules_evicted_pods(cluster: Cluster) -> bool:
    """Return True if evicted pods are scheduled again even without a controller, as in clusters that are not live."""
    return cluster.kind != ClusterKind.KUBERNETES


def advice_basis(cluster: Cluster, spec: PolicySpec, waiting: Sequence[PodSpec] = ()) -> AdviceBasis:
    """Return a copy of a cluster's state on which moves can be tried; `spec` applies to pods that name no policy."""
    kept = _immovable_pods(cluster)
    copy = cache_of(cluster.pk)
    with copy.locked_snapshot() as loaded:
        state, revision, node_ids = loaded.state.fork(), loaded.revision, dict(loaded.node_ids)
        policy = copy.policy(spec)
        own = {key: copy.policy(found) for key, found in _own_policies(cluster, spec, waiting).items()}
        kept.update(dict.fromkeys(loaded.nominees, BUSY))
    for pod in waiting:
        if pod.key in state.placed_pods:
            state.forget(pod.key)  # a nominated pod, which is assumed in the state but still waits
    board = Board(
        state, policy, evaluated_at=rfc3339(timezone.now()), returns=reschedules_evicted_pods(cluster), own=own
    )
    return AdviceBasis(board, revision, state.digest(), node_ids, kept, own)


def advice_about(cluster: Cluster, question: Question, spec: PolicySpec) -> Advice:
    """Return the moves that answer a question about the current state of a cluster."""
    found = advice_basis(cluster, spec, question.pods)
    return advise(
        found.board.state,
        found.board.scheduler.policy,
        question,
        evaluated_at=rfc3339(timezone.now()),
        kept=found.kept,
        returns=reschedules_evicted_pods(cluster),
        own=found.own,
        consume=True,
    )


def pending_pods_of(workload: Workload) -> list[PodSpec]:
    """Return the pending pods of a workload, in the order of submission."""
    rows = workload.pods.filter(state__in=[State.PENDING.value, State.NOT_NOW.value]).order_by("id")
    return list(rows.values_list("spec", flat=True)[:MOST_WAITING])


def pending_pods_in(cluster: Cluster) -> list[PodSpec]:
    """Return the pending pods of a cluster, those with the highest priority first."""
    rows = Pod.objects.filter(cluster=cluster, state__in=[State.PENDING.value, State.NOT_NOW.value])
    return list(rows.order_by("-priority", "id").values_list("spec", flat=True)[:MOST_WAITING])


def _immovable_pods(cluster: Cluster) -> dict[str, str]:
    """Return the pods that must not move because they are in transition."""
    settled = _SETTLED | ({State.PLACED.value} if cluster.kind == ClusterKind.OFFLINE else set())
    moving = Pod.objects.filter(cluster=cluster, state__in=[state.value for state in HOLDING if state not in settled])
    asked = Q(state=Eviction.WANTED) | Q(state=Eviction.ASKED, victim__state__in=[s.value for s in HOLDING])
    leaving = Eviction.objects.filter(asked, cluster=cluster)
    nominated = Nomination.objects.filter(cluster=cluster, active=True)
    names = [
        *moving.values_list("namespace", "name"),
        *leaving.values_list("victim__namespace", "victim__name"),
        *nominated.values_list("pod__namespace", "pod__name"),
    ]
    return {f"{namespace}/{name}": BUSY for namespace, name in names}


def _own_policies(cluster: Cluster, spec: PolicySpec, waiting: Sequence[PodSpec]) -> dict[str, PolicySpec]:
    """Return the policies of the pods whose policy is not `spec`, by pod key.

    `waiting` may contain pods that do not exist yet.
    """
    alive = [state.value for state in (*HOLDING, State.PENDING, State.NOT_NOW)]
    rows = Pod.objects.filter(cluster=cluster, state__in=alive).exclude(policy__in=["", spec.name])
    named = list(rows.values_list("namespace", "name", "policy"))
    chooser = Chooser(cluster)
    known = {(namespace, name) for namespace, name, _ in named}
    for pod in waiting:
        if (pod.namespace, pod.name) not in known:
            named.append((pod.namespace, pod.name, chooser.choose(pod)[0].name))
    specs: dict[str, PolicySpec] = {}
    for some in batched(sorted({policy for _, _, policy in named})):
        specs.update(active_specs(set(some)))
    return {f"{namespace}/{name}": specs[policy] for namespace, name, policy in named if policy in specs}
