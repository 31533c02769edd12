"""Feasibility and score of nodes per pod shape: evaluated once, then updated row by row.

Scoring 5,000 nodes again for every pod repeats nearly all of the work, because a placement changes only one node.
The results of STATIC plugins are cached per (plugin, static key) until the inventory changes. Per shape, feasibility
and the weighted total of row-scoped plugins are cached for all rows; for the next pod of that shape only the rows added
to the state's change log since then are evaluated again. Results that depend on more than one row (normalised scores,
cluster-scoped plugins) are added for each decision.
Invariants: the cached arrays equal a full evaluation, bit for bit; infeasible rows have total -inf.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from hetsched.engine.cluster.columns import Bools, Floats, Rows, Window
from hetsched.engine.cluster.state import ClusterState

from .extension_points import Scope
from .policy import ActivePlugin, Policy
from .request import CompiledShape, Request, cycle_state
from .status import ALONE, SKIP, Refusal

INFEASIBLE = -np.inf
_KEPT_SHAPES = 4096
_KEPT_STATIC = 4096
_REBUILD_SHARE = 3
# With fewer changes, evaluating a row twice costs less than removing duplicate rows.
_MANY_CHANGES = 200


class Evaluation:
    """Cached evaluation of one shape on one state under one policy.

    `scores` are the score plugins that take part, including cluster-scoped plugins, whose PreScore runs later.
    `row_refusal` is the refusal by a row-scoped PreFilter plugin, which applies to all pods of the shape. `refusal` is
    the refusal of the pod evaluated last, by any PreFilter plugin.
    Array shapes: `feasible`, `static_mask` (N,) bool; `total`, `static_total` (N,) float64.
    """

    __slots__ = (
        "cluster_filters", "cluster_scores", "epoch", "feasible", "load_filters", "load_scores", "memo", "normalized",
        "refusal", "row_refusal", "scores", "seen", "static_mask", "static_total", "total", "weight_sum",
    )  # fmt: skip

    def __init__(self) -> None:
        self.epoch = -1
        self.seen = 0
        self.memo = cycle_state()
        self.row_refusal: tuple[ActivePlugin, Refusal] | None = None
        self.refusal: tuple[ActivePlugin, Refusal] | None = None
        self.load_filters: list[ActivePlugin] = []
        self.load_scores: list[ActivePlugin] = []
        self.cluster_filters: list[ActivePlugin] = []
        self.cluster_scores: list[ActivePlugin] = []
        self.normalized: list[tuple[ActivePlugin, Floats]] = []
        self.scores: list[ActivePlugin] = []
        self.weight_sum = 0.0
        self.static_mask: Bools
        self.static_total: Floats
        self.feasible: Bools
        self.total: Floats


class EvaluatedPod(NamedTuple):
    """A pod's request, the evaluation of its shape, and the pod's total score on every node, shape (N,).

    It is valid until the state changes or another pod is evaluated.
    """

    request: Request
    evaluation: Evaluation
    total: Floats


class Evaluator:
    """Cache of shape evaluations for one state and one policy."""

    def __init__(self, state: ClusterState, policy: Policy) -> None:
        self.state = state
        self.policy = policy
        self._kept: OrderedDict[int, tuple[CompiledShape, Evaluation]] = OrderedDict()
        self._kept_width = 0
        self._static: dict[tuple[str, Any], Any] = {}
        self._static_width = 0
        self._static_epoch = -1

    def evaluate(self, request: Request) -> tuple[Evaluation, Floats]:
        """Return the evaluation of the request's shape, and the total score of this pod on every node, shape (N,)."""
        compiled = request.compiled
        kept = self._kept.get(id(compiled))
        if kept is not None and kept[1].epoch == self.state.epoch:
            evaluation = kept[1]
            request.memo = evaluation.memo
            self._refresh(request, evaluation)
        else:
            evaluation = self.prepare(request)
            evaluation.feasible = evaluation.static_mask.copy()
            evaluation.total = np.full(len(evaluation.feasible), INFEASIBLE)
            self._evaluate_rows(request, evaluation, self.state.all_rows, None)
            self._keep(compiled, evaluation)
        evaluation.refusal = evaluation.row_refusal
        if evaluation.normalized or evaluation.cluster_filters or evaluation.cluster_scores:
            return evaluation, self._vary(request, evaluation)
        return evaluation, evaluation.total

    def _keep(self, compiled: CompiledShape, evaluation: Evaluation) -> None:
        """Cache an evaluation and drop the oldest ones beyond the limit; a wide shape is counted as several."""
        before = self._kept.pop(id(compiled), None)
        self._kept_width += compiled.width - (before[0].width if before is not None else 0)
        self._kept[id(compiled)] = (compiled, evaluation)
        while self._kept_width > _KEPT_SHAPES and len(self._kept) > 1:
            _, (oldest, _) = self._kept.popitem(last=False)
            self._kept_width -= oldest.width

    # -- a whole evaluation --------------------------------------------------------------------------------------

    def prepare(self, request: Request) -> Evaluation:
        """Select the plugins for the request's shape and get the results of STATIC plugins; no LOAD plugin runs."""
        state, evaluation = self.state, Evaluation()
        evaluation.memo = request.memo
        # Compiling a request may widen the state's blocks, so read the epoch after it.
        evaluation.epoch = state.epoch
        evaluation.seen = len(state.log)
        count = len(state.reports)
        mask: Bools = np.ones(count, np.bool_)
        skipped = self._pre_filter(request, evaluation, mask)
        for plugin in self.policy.gates:
            if plugin.name in skipped:
                continue
            if plugin.info.scope is Scope.CLUSTER:
                evaluation.cluster_filters.append(plugin)
            elif not plugin.serves("filter"):
                continue
            elif plugin.static:
                mask &= self.static_filter(request, plugin)
            else:
                evaluation.load_filters.append(plugin)
        evaluation.static_mask = mask
        evaluation.static_total = np.zeros(count)
        evaluation.scores = scores_taking_part(self.policy, request, state)
        for plugin in evaluation.scores:
            self._prepare_score(request, plugin, evaluation)
        return evaluation

    def _pre_filter(self, request: Request, evaluation: Evaluation, mask: Bools) -> set[str]:
        skipped: set[str] = set()
        for plugin in self.policy.pre_filters:
            if plugin.info.scope is Scope.CLUSTER:
                continue  # cluster-scoped PreFilters run for every pod, in `_vary`
            answer = plugin.instance.pre_filter(request, self.state)
            if answer is SKIP:
                skipped.add(plugin.name)
            elif isinstance(answer, Refusal):
                evaluation.row_refusal = evaluation.row_refusal or (plugin, answer)
                mask[:] = False
            elif answer is not None:
                mask &= _only(answer, len(mask))
        return skipped

    def _prepare_score(self, request: Request, plugin: ActivePlugin, evaluation: Evaluation) -> None:
        if plugin.info.scope is Scope.CLUSTER:
            evaluation.cluster_scores.append(plugin)
            return
        evaluation.weight_sum += plugin.weight
        if plugin.serves("normalize-score"):
            evaluation.normalized.append((plugin, self.static_score(request, plugin) if plugin.static else _EMPTY))
        elif plugin.static:
            evaluation.static_total += plugin.weight * self.static_score(request, plugin)
        else:
            evaluation.load_scores.append(plugin)

    def static_filter(self, request: Request, plugin: ActivePlugin) -> Bools:
        """Return the result of a STATIC filter for all rows, cached by static key."""
        answer: Bools = self._static_answer(request, plugin, "filter")
        return answer

    def static_score(self, request: Request, plugin: ActivePlugin) -> Floats:
        answer: Floats = self._static_answer(request, plugin, "score")
        return answer

    def _static_answer(self, request: Request, plugin: ActivePlugin, method: str) -> Any:
        if self._static_epoch != self.state.epoch or self._static_width > _KEPT_STATIC:
            self._static.clear()
            self._static_epoch, self._static_width = self.state.epoch, 0
        key = (f"{plugin.name}.{method}", plugin.static_key(request))
        answer = self._static.get(key)
        if answer is None:
            answer = self._static[key] = getattr(plugin.instance, method)(request, self.state.all_rows)
            self._static_width += request.compiled.width
        return answer

    # -- update of changed rows ------------------------------------------------------------------------------------

    def _refresh(self, request: Request, evaluation: Evaluation) -> None:
        state = self.state
        log, seen = state.log, evaluation.seen
        changed = len(log) - seen
        if not changed:
            return
        evaluation.seen = len(log)
        if changed * _REBUILD_SHARE > len(state.reports):
            self._evaluate_rows(request, evaluation, state.all_rows, None)
            return
        rows = np.array(log[seen:] if changed < _MANY_CHANGES else list(set(log[seen:])), np.intp)
        rows = rows[evaluation.static_mask.take(rows)]
        if rows.size:
            self._evaluate_rows(request, evaluation, Window(state.columns, rows), rows)

    def _evaluate_rows(self, request: Request, evaluation: Evaluation, nodes: Window, rows: Rows | None) -> None:
        """Run the row-scoped LOAD plugins over a window; `rows` None means all rows."""
        feasible: Bools | None = evaluation.static_mask if rows is None else None
        for plugin in evaluation.load_filters:
            fits = plugin.instance.filter(request, nodes)
            feasible = fits if feasible is None else feasible & fits
        total = nodes.pick(evaluation.static_total)
        for plugin in evaluation.load_scores:
            score = plugin.instance.score(request, nodes)
            total = total + (score if plugin.weight == 1.0 else plugin.weight * score)
        if feasible is not None:
            total = np.where(feasible, total, INFEASIBLE)
        if rows is None:
            assert feasible is not None
            evaluation.feasible = feasible.copy()
            evaluation.total = total
        else:
            evaluation.feasible[rows] = True if feasible is None else feasible
            evaluation.total[rows] = total

    # -- scores over all rows ----------------------------------------------------------------------------------------

    def _vary(self, request: Request, evaluation: Evaluation) -> Floats:
        state, nodes = self.state, self.state.all_rows
        feasible = evaluation.feasible
        for plugin in evaluation.cluster_filters:
            answer = plugin.instance.pre_filter(request, state) if plugin.serves("pre-filter") else None
            if isinstance(answer, Refusal):
                evaluation.refusal = evaluation.refusal or (plugin, answer)
                return np.full(nodes.n, INFEASIBLE)
            if answer is SKIP:
                continue
            if answer is not None:
                feasible = feasible & _only(answer, nodes.n)
            if plugin.serves("filter"):
                feasible = feasible & plugin.instance.filter(request, nodes)
        total = evaluation.total
        if feasible is not evaluation.feasible:
            total = np.where(feasible, total, INFEASIBLE)
        if not feasible.any():
            return total
        request.feasible = feasible
        weight_sum = 0.0
        scored = request.scored = {}
        for plugin, raw in evaluation.normalized:
            scores = plugin.instance.score(request, nodes) if raw is _EMPTY else raw
            normal = plugin.instance.normalize(request, scores, feasible)
            total = total + plugin.weight * normal
            scored[plugin.name] = scores, normal
        for plugin in evaluation.cluster_scores:
            if plugin.serves("pre-score") and plugin.instance.pre_score(request, state) is SKIP:
                continue
            normal = scores = plugin.instance.score(request, nodes)
            if plugin.serves("normalize-score"):
                normal = plugin.instance.normalize(request, scores, feasible)
            total = total + plugin.weight * normal
            scored[plugin.name] = scores, normal
            weight_sum += plugin.weight
        request.cluster_weight = weight_sum
        return total


def scores_taking_part(policy: Policy, request: Request, state: ClusterState) -> list[ActivePlugin]:
    """Return the score plugins that take part for a request; if a plugin's PreScore returns ALONE, only that plugin.

    The PreScore of cluster-scoped plugins runs later.
    """
    chosen: list[ActivePlugin] = []
    for plugin in policy.scores:
        answer = None
        if plugin.info.scope is not Scope.CLUSTER and plugin.serves("pre-score"):
            answer = plugin.instance.pre_score(request, state)
        if answer is ALONE:
            return [plugin]
        if answer is not SKIP:
            chosen.append(plugin)
    return chosen


def _only(rows: Rows, count: int) -> Bools:
    """Return a (count,) mask that is True only on `rows`."""
    chosen: Bools = np.zeros(count, np.bool_)
    chosen[rows] = True
    return chosen


_EMPTY: Floats = np.zeros(0)
