"""Decision matrix of a pod: the result of each plugin on each node.

The columns are the raw and normalised scores of the plugins. Scores of STATIC plugins, and those over all rows, are
from the evaluation of the pod; the others are evaluated outside the hot path. A node that is rejected has the reason of
the first filter that rejects it, and no scores.
"""

from __future__ import annotations

import numpy as np

from hetsched.contracts.api.decision import NodeOutcome, PluginScore
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.columns import Floats, Rows, Window
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.handle import Handle
from hetsched.engine.framework.policy import ActivePlugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.scoring import INFEASIBLE, EvaluatedPod, Evaluation

from .diagnosis import first_reasons

# Find at most this many best rows by repeated searches for the maximum, which is faster than sorting.
_FEW = 8

Column = tuple[ActivePlugin, Floats, Floats]


def matrix(scheduler: Handle, pod: PodSpec) -> tuple[NodeOutcome, ...]:
    """Return the node x plugin matrix of one pod, best node first.

    The state is unchanged. Call this function before the pod is assumed, or on a fork.
    """
    if not pod.ready:
        return ()
    state, names = scheduler.state, scheduler.state.columns.names
    scheduler.prepare(pod)
    request = state.compile(pod)
    evaluation, total = scheduler.evaluator.evaluate(request)
    feasible = total > INFEASIBLE
    columns = score_columns(scheduler, request, evaluation) if feasible.any() else []
    # Stable sort on the negated total: best first, equal totals by node name, infeasible rows last.
    order = np.argsort(-total, kind="stable")
    refused = first_reasons(scheduler, request)
    rows: list[NodeOutcome] = []
    for rank, row in enumerate(order.tolist(), start=1):
        if not feasible[row]:
            rows.append(NodeOutcome(names[row], pod.key, False, refused.get(row), (), None, None))
            continue
        scores = _scores(columns, row)
        rows.append(NodeOutcome(names[row], pod.key, True, None, scores, float(total[row]), rank))
    return tuple(rows)


def best(scheduler: Handle, pod: PodSpec, limit: int) -> tuple[NodeOutcome, ...]:
    """Return the `limit` best feasible nodes with their scores, as `matrix` would, but build only these rows."""
    return best_of(scheduler, scheduler.evaluate(pod), limit) if pod.ready and limit > 0 else ()


def best_of(scheduler: Handle, evaluated: EvaluatedPod, limit: int) -> tuple[NodeOutcome, ...]:
    """Return the best nodes of a pod that was evaluated last, as `best` does."""
    request, evaluation, total = evaluated
    rows = _best_rows(total, limit)
    if not rows.size:
        return ()
    names, columns = scheduler.state.columns.names, _columns(scheduler, request, evaluation, rows)
    return tuple(
        NodeOutcome(names[row], request.pod.key, True, None, _scores(columns, place), float(total[row]), place + 1)
        for place, row in enumerate(rows.tolist())
    )


def node_outcome(scheduler: Handle, pod: PodSpec, row: int) -> NodeOutcome:
    """Return the entry of one node as in `matrix`, but without a rank."""
    state = scheduler.state
    request = state.compile(pod)
    evaluation, total = scheduler.evaluator.evaluate(request)
    name = state.columns.names[row]
    if total[row] == INFEASIBLE:
        return NodeOutcome(name, pod.key, False, first_reasons(scheduler, request).get(row), (), None, None)
    columns = _columns(scheduler, request, evaluation, np.array([row], np.intp))
    return NodeOutcome(name, pod.key, True, None, _scores(columns, 0), float(total[row]), None)


def _best_rows(total: Floats, limit: int) -> Rows:
    """Return the feasible rows with the highest totals, best first, ties by name."""
    if limit > _FEW:
        rows: Rows = np.argsort(-total, kind="stable")[:limit]
        return rows[total[rows] > INFEASIBLE]
    remaining, found = total.copy(), []
    for _ in range(min(limit, len(total))):
        row = int(remaining.argmax())
        if remaining[row] == INFEASIBLE:
            break
        remaining[row] = INFEASIBLE
        found.append(row)
    return np.array(found, np.intp)


def _scores(columns: list[Column], position: int) -> tuple[PluginScore, ...]:
    return tuple(
        PluginScore(p.name, float(raw[position]), float(norm[position]), p.weight, p.weight * float(norm[position]))
        for p, raw, norm in columns
    )


def score_columns(scheduler: Handle, request: Request, evaluation: Evaluation) -> list[Column]:
    """Return the raw and normalised scores over all rows, for each plugin that scores the pod that was evaluated last.

    At least one node must be feasible.
    """
    return _columns(scheduler, request, evaluation, None)


def _columns(scheduler: Handle, request: Request, evaluation: Evaluation, rows: Rows | None) -> list[Column]:
    """Return the raw and normalised scores of each plugin on `rows` (None: all rows)."""
    state = scheduler.state
    window = state.all_rows if rows is None else Window(state.columns, rows)
    columns: list[Column] = []
    for plugin in evaluation.scores:
        if plugin.info.scope is Scope.CLUSTER or plugin.serves("normalize-score"):
            scored = request.scored.get(plugin.name)
            if scored is None:  # its PreScore skipped the pod
                continue
            raw, normal = scored
        elif plugin.static:
            raw = normal = scheduler.evaluator.static_score(request, plugin)
        else:
            raw = normal = plugin.instance.score(request, window)
            columns.append((plugin, raw, normal))
            continue
        columns.append((plugin, raw, normal) if rows is None else (plugin, raw[rows], normal[rows]))
    return columns
