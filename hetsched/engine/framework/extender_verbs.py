"""Scheduler extender: filter, prioritize and preempt on behalf of another scheduler.

The other scheduler knows requests and labels, but no instruction sets, GPUs, NUMA zones or exclusive CPUs. The filters
and scores of our policy evaluate the nodes of its request.
    filter       a node fits if every filter accepts it and, for the `_MOST_RESERVED` best nodes, a trial reservation
                 succeeds. A node is FailedAndUnresolvable if preemption of other pods would not help
    prioritize   10 only for the node of the request that our own cycle would select; 0 to 9 for its other nodes, linear
                 between the lowest and the highest total of the nodes of the request
    preempt      the victims of the other scheduler, if the pod fits after their removal. Otherwise further pods of
                 lower priority are added, the least important first, and those that can be reprieved are removed again.
                 Members of a gang and pods under a disruption budget are never added
A pod that is already assumed, because its binding is in flight, fits only on the node of that binding.
Source: Kubernetes kube-scheduler, extender/v1 (MaxExtenderPriority = 10).
Invariants: the state is unchanged afterwards; a higher total never has the lower priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.cluster.selector_counts import Matcher
from hetsched.engine.explain.diagnosis import rejected_rows
from hetsched.engine.preemption.victims import importance

from .cycle import Scheduler
from .post_filter import Attempt
from .scoring import INFEASIBLE

MOST_PRIORITY = 10
_MOST_RESERVED = 100
UNKNOWN_NODE = "are not known to hetsched yet"


class FilteredNodes(msgspec.Struct):
    """Result of the filter call: feasible nodes, and the reasons of all other nodes by name.

    Preemption may help on the nodes in `rejected`, but not on those in `unresolvable`.
    """

    feasible: list[str] = []
    rejected: dict[str, str] = {}
    unresolvable: dict[str, str] = {}


def filter_nodes(scheduler: Scheduler, pod: PodSpec, names: Sequence[str]) -> FilteredNodes:
    """Return, for each node of the request, whether `pod` may run there now, or why not."""
    result = FilteredNodes()
    pod_refusal = _pod_refusal(pod)
    if pod_refusal:
        result.unresolvable = dict.fromkeys(names, pod_refusal)
        return result
    state = scheduler.state
    placed = state.placed_pods.get(pod.key)
    if placed is not None:
        _fill_bound_node(result, pod, names, placed, state.columns.names[placed.row])
        return result
    request = state.compile(pod)
    _, total = scheduler.evaluator.evaluate(request)
    rows = {name: state.row_of[name] for name in names if name in state.row_of}
    refused = rejected_rows(scheduler, request) if any(total[row] == INFEASIBLE for row in rows.values()) else {}
    feasible = [row for row in rows.values() if total[row] > INFEASIBLE]
    unreservable: dict[int, str] = {}
    if pod.shape.gpu is not None or pod.shape.numa is not None or pod.shape.containers:
        for row in sorted(feasible, key=lambda row: (-total[row], row))[:_MOST_RESERVED]:
            refusal = scheduler.reserve_refusal(request, row)
            if refusal is not None:
                unreservable[row] = refusal.message
    for name in names:
        row = rows.get(name, -1)
        if row < 0:
            result.rejected[name] = UNKNOWN_NODE
        elif row in unreservable:
            result.rejected[name] = unreservable[row]
        elif total[row] > INFEASIBLE:
            result.feasible.append(name)
        else:
            reason, resolvable = refused[row]
            (result.rejected if resolvable else result.unresolvable)[name] = reason.message
    return result


def _pod_refusal(pod: PodSpec) -> str:
    """Return the reason that keeps a pod off every node, or an empty string."""
    if pod.problems:
        first = pod.problems[0]
        return f"cannot run a pod with an invalid request: {first.field}: {first.message}"
    if pod.gang is not None:
        gang = f"{pod.namespace}/{pod.gang.name}"
        return f"cannot run a member of gang {gang}: only schedulerName hetsched places complete gangs"
    return "cannot run a pod with scheduling gates" if pod.gates else ""


def _fill_bound_node(result: FilteredNodes, pod: PodSpec, names: Iterable[str], placed: PlacedPod, node: str) -> None:
    same = placed.pod.uid == pod.uid
    why = f"are not {node}, the target of its binding" if same else "wait until the previous pod of this name ends"
    for name in names:
        if same and name == node:
            result.feasible.append(name)
        else:
            result.rejected[name] = why


def prioritize_nodes(scheduler: Scheduler, pod: PodSpec, names: Sequence[str]) -> dict[str, int]:
    """Return a priority of 0 to 10 for each node of the request; 0 if the node is unknown or the pod does not fit."""
    state = scheduler.state
    scores = dict.fromkeys(names, 0)
    placed = state.placed_pods.get(pod.key)
    if _pod_refusal(pod) or placed is not None:
        node = state.columns.names[placed.row] if placed is not None else ""
        return {name: MOST_PRIORITY if name == node else 0 for name in names}
    request = state.compile(pod)
    _, total = scheduler.evaluator.evaluate(request)
    rows = {name: state.row_of[name] for name in scores if name in state.row_of}
    rows = {name: row for name, row in rows.items() if total[row] > INFEASIBLE}
    if not rows:
        return scores
    named_totals = np.full(len(total), INFEASIBLE)
    chosen = list(rows.values())
    named_totals[chosen] = total[chosen]
    first = scheduler.pick(request, named_totals)
    least, most = float(total[chosen].min()), float(total[chosen].max())
    for name, row in rows.items():
        share = (float(total[row]) - least) / (most - least) if most > least else 1.0
        scores[name] = MOST_PRIORITY if row == first else int(share * (MOST_PRIORITY - 1))
    return scores


def find_victims(
    scheduler: Scheduler, pod: PodSpec, offered: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Return, for each node on which `pod` would fit, the uids of the victims.

    `offered` maps each node to the uids of the victims that the other scheduler selected there.

    The result omits nodes on which the pod would not fit even without the victims, and nodes whose victims may not be
    preempted.
    """
    if _pod_refusal(pod) or pod.key in scheduler.state.placed_pods:
        return {}
    attempt = Attempt(scheduler, scheduler.state.compile(pod))
    found: dict[str, tuple[str, ...]] = {}
    for name, uids in offered.items():
        row = scheduler.state.row_of.get(name, -1)
        further = None if row < 0 else _further_victims(scheduler, attempt, pod, row, frozenset(uids))
        if further is not None:
            found[name] = (*uids, *(placed.pod.uid for placed in further))
    return found


def _further_victims(
    scheduler: Scheduler, attempt: Attempt, pod: PodSpec, row: int, uids: frozenset[str]
) -> list[PlacedPod] | None:
    """Return the victims needed in addition to `uids`, or None if no evictions on the node make the pod fit."""
    state = scheduler.state
    placed_pods = list(state.on_row[row].values())
    removed: list[PlacedPod] = []

    def forget(placed: PlacedPod) -> None:
        state.forget(placed.pod.key)
        removed.append(placed)

    def restore(placed: PlacedPod) -> None:
        state.restore(placed)
        removed.remove(placed)

    try:
        for placed in placed_pods:
            if placed.pod.uid in uids:
                forget(placed)
        named_count = len(removed)
        others = [
            placed for placed in placed_pods if placed.pod.uid not in uids and _is_evictable(scheduler, pod, placed)
        ]
        for placed in sorted(others, key=importance, reverse=True):
            if attempt.fits(row) and attempt.grants(row):
                break
            forget(placed)
        if not (attempt.fits(row) and attempt.grants(row)):
            return None
        for placed in sorted(removed[named_count:], key=importance):
            restore(placed)
            if not (attempt.fits(row) and attempt.grants(row)):
                forget(placed)
        return removed[named_count:]
    finally:
        for placed in list(removed):
            state.restore(placed)


def _is_evictable(scheduler: Scheduler, pod: PodSpec, placed: PlacedPod) -> bool:
    """Return whether a pod that the other scheduler did not name may be added to the victims."""
    victim, state = placed.pod, scheduler.state
    if victim.priority >= pod.priority or not victim.preemptible or victim.gang is not None or not victim.uid:
        return False
    guards = (Matcher(budget.selector, (budget.namespace,)) for budget in state.budgets)
    return not any(guard.matches(victim, state.namespaces) for guard in guards)
