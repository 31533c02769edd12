"""Advice about a cluster as its rows have it: the engine's, with who is on the way and which policy decides for whom.

Rule: the state is a copy of the warm one. Pods that are being bound, nominated or taken off stay. Each pod is placed
anew by the active version of its own policy. Where placements exist only here, every pod comes back by itself.
Invariant: nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from django.db.models import Q
from django.utils import timezone

from hetsched.contracts.advice import Advice, Question
from hetsched.contracts.policy import PolicySpec
from hetsched.contracts.times import rfc3339
from hetsched.contracts.workload import PodSpec
from hetsched.engine.framework.policy import Policy
from hetsched.engine.simulation.advice import advise
from hetsched.engine.simulation.moves import Board
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.placement.lifecycle import HOLDING, State
from hetsched.placement.models import Eviction, Nomination, Pod, Workload
from hetsched.placement.snapshot import warm
from hetsched.policies.effective import Chooser, active_specs
from hetsched.storage.batches import parts

MOST_WAITING = 200
BUSY = "Busy"
# What holds its node and could leave it; where nobody binds, being placed is all there is.
_SETTLED = frozenset({State.BOUND.value, State.RUNNING.value})


class Footing(msgspec.Struct, frozen=True):
    """A board on a copy of a cluster's present state, its revision and digest, and who stays for the cluster's sake."""

    board: Board
    revision: int
    snapshot: str
    node_ids: dict[str, int]
    kept: dict[str, str]
    own: dict[str, Policy]


def returns(cluster: Cluster) -> bool:
    """Tell whether every pod that leaves comes back by itself: it does where placements exist only here."""
    return cluster.kind != ClusterKind.KUBERNETES


def footing(cluster: Cluster, spec: PolicySpec, waiting: Sequence[PodSpec] = ()) -> Footing:
    """Return a copy of a cluster on which moves can be tried; `spec` decides for pods that name no other policy."""
    kept = _kept(cluster)
    copy = warm(cluster.pk)
    with copy.held() as loaded:
        state, revision, node_ids = loaded.state.fork(), loaded.revision, dict(loaded.node_ids)
        policy = copy.policy(spec)
        own = {key: copy.policy(found) for key, found in _own(cluster, spec, waiting).items()}
        kept.update(dict.fromkeys(loaded.nominees, BUSY))
    for pod in waiting:
        if pod.key in state.bookings:
            state.forget(pod.key)  # nominated: booked beside those who make room for it
    board = Board(state, policy, evaluated_at=rfc3339(timezone.now()), returns=returns(cluster), own=own)
    return Footing(board, revision, state.digest(), node_ids, kept, own)


def advice_about(cluster: Cluster, question: Question, spec: PolicySpec) -> Advice:
    """Return the moves that answer a question about a cluster as it is now."""
    found = footing(cluster, spec, question.pods)
    return advise(
        found.board.state,
        found.board.scheduler.policy,
        question,
        evaluated_at=rfc3339(timezone.now()),
        kept=found.kept,
        returns=returns(cluster),
        own=found.own,
        consume=True,
    )


def waiting_of(workload: Workload) -> list[PodSpec]:
    """Return the pods of a workload that found no room yet, in the order of submission."""
    rows = workload.pods.filter(state__in=[State.PENDING.value, State.NOT_NOW.value]).order_by("id")
    return list(rows.values_list("spec", flat=True)[:MOST_WAITING])


def waiting_in(cluster: Cluster) -> list[PodSpec]:
    """Return what waits in a cluster, the most important first."""
    rows = Pod.objects.filter(cluster=cluster, state__in=[State.PENDING.value, State.NOT_NOW.value])
    return list(rows.order_by("-priority", "id").values_list("spec", flat=True)[:MOST_WAITING])


def _kept(cluster: Cluster) -> dict[str, str]:
    """Return who stays because it is on its way somewhere."""
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


def _own(cluster: Cluster, spec: PolicySpec, waiting: Sequence[PodSpec]) -> dict[str, PolicySpec]:
    """Return the policies of pods that another one decides for than `spec`; some of `waiting` are not there yet."""
    alive = [state.value for state in (*HOLDING, State.PENDING, State.NOT_NOW)]
    rows = Pod.objects.filter(cluster=cluster, state__in=alive).exclude(policy__in=["", spec.name])
    named = list(rows.values_list("namespace", "name", "policy"))
    chooser = Chooser(cluster)
    known = {(namespace, name) for namespace, name, _ in named}
    for pod in waiting:
        if (pod.namespace, pod.name) not in known:
            named.append((pod.namespace, pod.name, chooser.choose(pod)[0].name))
    specs: dict[str, PolicySpec] = {}
    for some in parts(sorted({policy for _, _, policy in named})):
        specs.update(active_specs(set(some)))
    return {f"{namespace}/{name}": specs[policy] for namespace, name, policy in named if policy in specs}
