"""Input of PostFilter plugins for a pod that fits no node now, and the trials that the plugins may run.

The policy's own filters decide whether an eviction would help. `fits` runs all of them on one row of the current state,
so a plugin may remove pods, call it, and restore them; `possible` runs the row-scoped filters on rows with a
hypothetical load. Evictions do not change facts, so cached STATIC results are used. The diagnosis is computed on first
access: it costs two full evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.columns import Bools, Columns, Rows, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose

from .diagnosis import Diagnosis
from .handle import Handle
from .policy import Policy
from .request import Request
from .status import SKIP, Eviction, Refusal


class Attempt:
    """A request that fits no node of one scheduler's state, with the trials that PostFilter plugins may run."""

    def __init__(self, scheduler: Handle, request: Request) -> None:
        self._scheduler = scheduler
        self._request = request
        self._evaluation, _ = scheduler.evaluator.evaluate(request)

    @property
    def policy(self) -> Policy:
        """The policy that refused the pod."""
        return self._scheduler.policy

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the pod, which states why no node fits."""
        return diagnose(self._scheduler, self._request.pod)

    @property
    def resolvable(self) -> tuple[int, ...]:
        """The rows that preemption could make feasible."""
        return self.diagnosis.resolvable

    def possible(self, columns: Columns, rows: Rows) -> Rows:
        """Return the subset of `rows` that all row-scoped filters would accept with the load in `columns`."""
        evaluation, request = self._evaluation, self._request
        rows = rows[evaluation.static_mask[rows]]
        nodes = Window(columns, rows)
        fits: Bools = np.ones(len(rows), np.bool_)
        for plugin in evaluation.load_filters:
            fits &= plugin.instance.filter(request, nodes)
        return rows[fits]

    def fits(self, row: int) -> bool:
        """Return whether every filter of the policy accepts the pod on a row of the current state."""
        evaluation, request, state = self._evaluation, self._request, self._scheduler.state
        if evaluation.row_refusal is not None or not evaluation.static_mask[row]:
            return False
        nodes = Window(state.columns, np.array([row], np.intp))
        if not all(plugin.instance.filter(request, nodes)[0] for plugin in evaluation.load_filters):
            return False
        for plugin in evaluation.cluster_filters:
            answer = plugin.instance.pre_filter(request, state) if plugin.serves("pre-filter") else None
            if answer is SKIP:
                continue
            if isinstance(answer, Refusal) or (answer is not None and row not in answer):
                return False
            if plugin.serves("filter") and not plugin.instance.filter(request, nodes)[0]:
                return False
        return True

    def local(self) -> bool:
        """Return whether no cluster-scoped filter applies to the pod, so that its fit depends on the node alone."""
        request, state = self._request, self._scheduler.state
        return all(
            plugin.serves("pre-filter") and plugin.instance.pre_filter(request, state) is SKIP
            for plugin in self._evaluation.cluster_filters
        )

    def fits_after_evictions(
        self,
        pods: Sequence[PodSpec],
        least: int,
        select: Callable[[Request, Attempt], Eviction | None] | None = None,
    ) -> bool:
        """Return whether at least `least` of these pods can be placed in order; the state is unchanged afterwards.

        `select` may name victims for a pod that fits no node; without it, no pod is evicted.
        """

        def victims(request: Request) -> Eviction | None:
            return None if select is None else select(request, Attempt(self._scheduler, request))

        with self._scheduler.trial(pods, least, victims) as trial:
            return trial.placed >= least

    def grants(self, row: int) -> bool:
        """Return whether devices, CPUs and zones for the pod can be reserved now on a feasible row."""
        return self._scheduler.can_reserve(self._request, row)


class PostFilter(Protocol):
    """Interface of a PostFilter plugin."""

    def post_filter(self, request: Request, diagnosis: Attempt, state: ClusterState) -> Eviction | None:
        """Return the victims whose eviction makes the pod fit; called only if no node was feasible."""
