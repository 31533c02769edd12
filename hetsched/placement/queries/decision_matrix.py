"""The full node x plugin matrix of a decision, worked out again.

Problem: keeping every score of every node for every decision would be a hundred times the ledger.
Rule: reservations know from which revision to which they held, so the state that was decided on is folded again, the
pods of the same batch that were placed before are booked, and the same policy revision scores the same pod. The digest
of the state must be the one that the decision cites.
"""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import Q

from hetsched.contracts.decision import ExpectedUse, NearestFit, NodeOutcome, Tipping
from hetsched.contracts.errors import InputError
from hetsched.contracts.policy import PolicySpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import matrix
from hetsched.engine.explain.nearest_fit import nearest_fit
from hetsched.engine.explain.tipping_points import tipping
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import IMPLIED, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.simulation.what_if import expected_use
from hetsched.placement.backoffs import avoided
from hetsched.placement.models import Decision, Pod
from hetsched.placement.snapshot import load_state
from hetsched.policies.models import PolicyRevision


def scheduler_before(decision: Decision, spec: PolicySpec | None = None) -> Scheduler:
    """Return a scheduler on the state that the decision was made on, under its policy revision or under `spec`.

    Raises: InputError `DecisionExpired` when the inventory changed since, or what held capacity then is forgotten.
    """
    cluster = decision.cluster
    policy = PolicyRevision.objects.filter(policy__name=decision.policy_name, version=decision.policy_version).first()
    expired = InputError(
        "DecisionExpired",
        f"decision {decision.pk} cannot be worked out again: the nodes or what ran on them changed since",
        hint="Its summary, reasons and best nodes are kept",
    )
    if (
        policy is None
        or cluster.inventory_revision != decision.inventory_revision
        or cluster.forgotten_revision > decision.cluster_revision
    ):
        raise expired
    state = load_state(cluster.pk, at_revision=decision.cluster_revision).state
    if state.digest() != decision.snapshot:
        raise expired
    state.avoided = avoided(cluster.pk, decision.created_at)
    compiled = compile_policy(spec or policy.spec, load_registry(), implied=IMPLIED)
    if compiled.wants_mix:
        state.use_mix(state.booked_mix())  # as the batch did when it began
    same_batch = Decision.objects.filter(cluster=cluster, cluster_revision=decision.cluster_revision)
    # One that is not placed after all, because it had to leave itself, made others leave all the same.
    told = same_batch.filter(Q(verdict="placed") | ~Q(evictions=()), id__lt=decision.pk)
    for other in told.select_related("pod").order_by("id"):
        state.forget(other.pod.spec.key)  # it was nominated before
        if not other.nominated_node:
            _let_go(state, other)
        if other.allocation is not None:
            row = state.row_of[other.nominated_node or other.node_name]
            state.assume(state.compile(other.pod.spec), row, other.allocation)
    state.forget(decision.pod.spec.key)
    _let_go(state, decision)
    return Scheduler(state, compiled)


def _let_go(state: ClusterState, decision: Decision) -> None:
    """Take the pods off that left for a placement: it was scored on what they left."""
    for evicted in decision.evictions:
        state.forget(evicted.pod)
    if decision.room:
        state.forget(decision.room)  # what was held for it


def matrix_of(decision: Decision, *, limit: int | None = None) -> tuple[NodeOutcome, ...]:
    """Return the matrix that decided, best node first.

    Raises: InputError `DecisionExpired`.
    """
    return matrix(scheduler_before(decision), decision.pod.spec, limit=limit)


class Further(NamedTuple):
    """What can be worked out again of a decision: what would have placed a refused pod, or by how much a placed one's
    node won, and what the pod was expected to use, where more than its requests was known."""

    nearest_fit: tuple[NearestFit, ...]
    tipping: Tipping | None
    expected_use: ExpectedUse | None


def further(decision: Decision) -> Further:
    """Work out what a decision did not write down.

    Raises: InputError `DecisionExpired`.
    """
    scheduler, pod = scheduler_before(decision), decision.pod.spec
    expected = expected_use(scheduler.state.experience.applied(pod))
    if not decision.node_name:
        announce_gang(scheduler.state, decision)
        return Further(nearest_fit(scheduler, pod), None, expected)
    margin = tipping(scheduler, pod)
    return Further((), margin if margin is not None and margin.node == decision.node_name else None, expected)


def announce_gang(state: ClusterState, decision: Decision) -> None:
    """Tell the state which members a gang has besides those that are booked, as the batch did."""
    gang = decision.pod.spec.gang
    if gang is not None:
        members = Pod.objects.filter(cluster=decision.cluster, namespace=decision.namespace, gang=gang.name)
        specs = (member.spec for member in members.order_by("id"))
        state.gangs.announce([spec for spec in specs if spec.key not in state.bookings])
