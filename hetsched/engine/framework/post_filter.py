"""A pod that no node fits now: what a PostFilter step is told, and what it may try.

Rule: whether evictions would help is asked of the policy's own filters. `fits` asks all of them about one row of the
ledger as it is at that moment, so a step may take pods off, ask, and put them back; `possible` asks those that look at
one row alone about rows as they would be. Facts do not change by evictions, so STATIC answers are those at hand.
The diagnosis is worked out when somebody reads it: it costs two full sweeps.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hetsched.engine.cluster.columns import Bools, Columns, Rows, Window
from hetsched.engine.explain.diagnosis import Diagnosis, diagnose

from .policy import Policy
from .request import Request
from .status import SKIP, Refusal

if TYPE_CHECKING:
    from .cycle import Scheduler


class Attempt:
    """One refused request on one scheduler's state."""

    def __init__(self, scheduler: Scheduler, request: Request) -> None:
        self._scheduler = scheduler
        self._request = request
        self._evaluation, _ = scheduler.evaluator.evaluate(request)

    @property
    def policy(self) -> Policy:
        """The policy that refused."""
        return self._scheduler.policy

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Why no node fits."""
        return diagnose(self._scheduler, self._request.pod)

    @property
    def resolvable(self) -> tuple[int, ...]:
        """The rows that fewer pods could open."""
        return self.diagnosis.resolvable

    def possible(self, columns: Columns, rows: Rows) -> Rows:
        """Return those of `rows` that would fit, were their load that of `columns`, as far as one row tells."""
        evaluation, request = self._evaluation, self._request
        rows = rows[evaluation.static_mask[rows]]
        nodes = Window(columns, rows)
        fits: Bools = np.ones(len(rows), np.bool_)
        for plugin in evaluation.load_filters:
            fits &= plugin.instance.filter(request, nodes)
        return rows[fits]

    def fits(self, row: int) -> bool:
        """Tell whether every filter of the policy lets the pod on a row of the state as it is now."""
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
        """Tell whether nothing but the node itself decides whether the pod may run there."""
        request, state = self._request, self._scheduler.state
        return all(
            plugin.serves("pre-filter") and plugin.instance.pre_filter(request, state) is SKIP
            for plugin in self._evaluation.cluster_filters
        )

    def grants(self, row: int) -> bool:
        """Tell whether the exact things that the pod would hold on a row that fits can be had now."""
        return self._scheduler.can_reserve(self._request, row)
