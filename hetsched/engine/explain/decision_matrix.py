"""Decision matrix of a pod: the result of each plugin on each node.

The columns are the raw and normalised scores of the plugins. Scores of STATIC plugins are those that the evaluator
caches; the others are evaluated outside the hot path. A node that is rejected has the reason of the first filter that
rejects it, and no scores.
"""

from __future__ import annotations

import numpy as np

from hetsched.contracts.api.decision import NodeOutcome, PluginScore
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.columns import Bools, Floats, Rows, Window
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.handle import Handle
from hetsched.engine.framework.policy import ActivePlugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.scoring import INFEASIBLE, scores_taking_part
from hetsched.engine.framework.status import SKIP

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
    _, total = scheduler.evaluator.evaluate(request)
    feasible = total > INFEASIBLE
    columns = score_columns(scheduler, request, feasible) if feasible.any() else []
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
    if not pod.ready or limit < 1:
        return ()
    state = scheduler.state
    scheduler.prepare(pod)
    request = state.compile(pod)
    evaluation, total = scheduler.evaluator.evaluate(request)
    rows = _best_rows(total, limit)
    if not rows.size:
        return ()
    columns = _columns(scheduler, evaluation.scores, request, total > INFEASIBLE, rows)
    return tuple(
        NodeOutcome(
            state.columns.names[row], pod.key, True, None, _scores(columns, position), float(total[row]), position + 1
        )
        for position, row in enumerate(rows.tolist())
    )


def node_outcome(scheduler: Handle, pod: PodSpec, row: int) -> NodeOutcome:
    """Return the entry of one node as in `matrix`, but without a rank."""
    state = scheduler.state
    request = state.compile(pod)
    evaluation, total = scheduler.evaluator.evaluate(request)
    name = state.columns.names[row]
    if total[row] == INFEASIBLE:
        return NodeOutcome(name, pod.key, False, first_reasons(scheduler, request).get(row), (), None, None)
    columns = _columns(scheduler, evaluation.scores, request, total > INFEASIBLE, np.array([row], np.intp))
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


def score_columns(scheduler: Handle, request: Request, feasible: Bools) -> list[Column]:
    """Return the raw and normalised scores over all rows, for each plugin that scores this pod."""
    plugins = scores_taking_part(scheduler.policy, request, scheduler.state)
    return _columns(scheduler, plugins, request, feasible, None)


def _columns(
    scheduler: Handle, plugins: list[ActivePlugin], request: Request, feasible: Bools, rows: Rows | None
) -> list[Column]:
    """Return the raw and normalised scores of each plugin on `rows` (None: all rows).

    The PreScore results of the row-scoped plugins must already be in `request.memo`. The scores of STATIC plugins are
    those that the evaluator caches.
    """
    state = scheduler.state
    window = state.all_rows if rows is None else Window(state.columns, rows)
    columns: list[Column] = []
    for plugin in plugins:
        among_rows = plugin.info.scope is Scope.CLUSTER
        if among_rows and plugin.serves("pre-score") and plugin.instance.pre_score(request, state) is SKIP:
            continue
        normalizes = plugin.serves("normalize-score")
        on_all_rows = plugin.static or normalizes or among_rows
        if plugin.static:
            raw = scheduler.evaluator.static_score(request, plugin)
        else:
            raw = plugin.instance.score(request, state.all_rows if on_all_rows else window)
        normal = plugin.instance.normalize(request, raw, feasible) if normalizes else raw
        if on_all_rows and rows is not None:
            raw, normal = raw[rows], normal[rows]
        columns.append((plugin, raw, normal))
    return columns
