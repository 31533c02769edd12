"""The full node x plugin matrix of a decision, recomputed.

Storing every score of every node for every decision would make the decision history a hundred times larger. The matrix
is therefore computed again. The state of the decision can be loaded, because reservations store the revisions at which
they began and ended; its digest must be the one stored with the decision. The pods placed earlier in the same batch are
assumed in this state, and the pod is scored again under the same policy revision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from django.db.models import Q

from hetsched.contracts.api.decision import ExpectedUse, NearestFit, NodeOutcome, Tipping
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.decision_matrix import matrix
from hetsched.engine.explain.nearest_fit import nearest_fit
from hetsched.engine.explain.tipping_points import tipping
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.gangs.domain_choice import select_domain_of
from hetsched.engine.simulation.what_if import expected_use
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Decision, Pod
from hetsched.placement.scheduling_queue.node_backoffs import avoided
from hetsched.policies.actions import check_policy
from hetsched.policies.golden_states import RecordedCluster
from hetsched.policies.models import PolicyRevision


def scheduler_before(decision: Decision, spec: PolicySpec | None = None) -> Scheduler:
    """Return a scheduler on the state of the decision, under its policy revision or under `spec`.

    Raises: InputError `DecisionExpired` if the inventory changed since, or if reservations of that time were deleted.
    """
    cluster = decision.cluster
    policy = PolicyRevision.objects.filter(policy__name=decision.policy_name, version=decision.policy_version).first()
    expired = InputError(
        "DecisionExpired",
        Message(
            "decision {number} cannot be recomputed: the nodes or their pods have changed since then",
            number=decision.pk,
        ),
        hint="The summary, reasons and best nodes of the decision are still available",
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
    compiled = compile_policy(spec or policy.spec, load_registry(), implied=True)
    if compiled.wants_mix:
        state.use_mix(state.placed_mix())  # the workload mix at the start of the batch
    same_batch = Decision.objects.filter(cluster=cluster, cluster_revision=decision.cluster_revision)
    # Include pods that were preempted later in the batch: they are not placed, but their own victims were removed.
    settled = same_batch.filter(Q(verdict="placed") | ~Q(evictions=()), id__lt=decision.pk)
    for other in settled.select_related("pod").order_by("id"):
        state.forget(other.pod_spec.key)  # an earlier decision may have nominated the pod
        if not other.nominated_node:
            _remove_victims(state, other)
        if other.allocation is not None:
            row = state.row_of[other.nominated_node or other.node_name]
            state.assume(state.compile(other.pod_spec), row, other.allocation)
    state.forget(decision.pod_spec.key)
    _remove_victims(state, decision)
    scheduler = Scheduler(state, compiled)
    pod, row = decision.pod_spec, state.row_of.get(decision.node_name, -1)
    if pod.gang is not None and pod.gang.topology is not None and row >= 0:
        register_gang(state, decision)
        select_domain_of(scheduler, pod, row)
    return scheduler


def recorded_cluster(decision: Decision) -> RecordedCluster:
    """Return the cluster as of a decision, without the pod of the decision, for a golden placement.

    Raises: InputError `DecisionExpired` if the inventory changed since, or if reservations of that time were deleted.
    """
    state = scheduler_before(decision).state
    names = state.columns.names
    running = tuple(
        msgspec.structs.replace(placed.pod, node_name=names[placed.row], allocation=placed.allocation)
        for _, placed in sorted(state.placed_pods.items())
    )
    reports = tuple(state.report_now(row) for row in range(len(state.reports)))
    content = msgspec.structs.replace(
        decision.cluster.definitions, nodes=reports, running=running, pending=(), policies=()
    )
    return RecordedCluster(decision.pk, content)


def _remove_victims(state: ClusterState, decision: Decision) -> None:
    """Remove the victims of a placement; the pod was scored without them."""
    for evicted in decision.evictions:
        state.forget(evicted.pod)
    if decision.used_reservation:
        state.forget(decision.used_reservation)  # the reservation of the hold that the pod used


def matrix_of(decision: Decision, *, scoring: Sequence[PluginUse] = ()) -> tuple[NodeOutcome, ...]:
    """Return the matrix of the decision, best node first; `scoring` lists additional scoring plugins.

    Raises: InputError `DecisionExpired`, or an error of the plugins.
    """
    return matrix(scheduler_before(decision, _extended_policy(decision, scoring)), decision.pod_spec)


def _extended_policy(decision: Decision, scoring: Sequence[PluginUse]) -> PolicySpec | None:
    """Return the decision's policy plus the plugins `scoring`; None if `scoring` is empty or the policy is unknown."""
    rows = PolicyRevision.objects.filter(policy__name=decision.policy_name, version=decision.policy_version)
    row = rows.first() if scoring else None
    if row is None:
        return None
    used = {use.name for use in row.spec.plugins}
    more = tuple(use for use in scoring if use.name not in used)
    return check_policy(msgspec.structs.replace(row.spec, plugins=(*row.spec.plugins, *more)))


class DecisionDetails(NamedTuple):
    """Details recomputed for a decision.

    `nearest_fit` lists changes that would have placed a rejected pod. `tipping` is the margin by which a placed pod's
    node won. `expected_use` is the pod's expected usage, or None if only its requests were known.
    """

    nearest_fit: tuple[NearestFit, ...]
    tipping: Tipping | None
    expected_use: ExpectedUse | None


def details_of(decision: Decision) -> DecisionDetails:
    """Compute the details that a decision does not store.

    Raises: InputError `DecisionExpired`.
    """
    scheduler, pod = scheduler_before(decision), decision.pod_spec
    expected = expected_use(scheduler.state.experience.applied(pod))
    if not decision.node_name:
        register_gang(scheduler.state, decision)
        return DecisionDetails(nearest_fit(scheduler, pod), None, expected)
    margin = tipping(scheduler, pod)
    return DecisionDetails((), margin if margin is not None and margin.node == decision.node_name else None, expected)


def register_gang(state: ClusterState, decision: Decision) -> None:
    """Register the members of the pod's gang that have no reservation, as the original batch did."""
    gang = decision.pod_spec.gang
    if gang is not None:
        members = Pod.objects.filter(cluster=decision.cluster, namespace=decision.namespace, gang=gang.name)
        specs = (member.spec for member in members.order_by("id"))
        state.gangs.register_queue([spec for spec in specs if spec.key not in state.placed_pods])
