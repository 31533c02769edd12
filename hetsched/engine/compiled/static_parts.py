"""Results of the STATIC plugins of a policy, which all shapes with the same static keys share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hetsched.engine.cluster.columns import UNKNOWN, Bools, Floats
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.policy import ActivePlugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.scoring import Evaluator
from hetsched.engine.framework.status import ALONE, SKIP, NoScore, Refusal, Skip


class StaticPart(NamedTuple):
    """Results of the STATIC plugins for all shapes with the same static keys: a mask (N,) and scores (N,) by plugin.

    `alone` is the only plugin that scores these shapes, empty if all plugins score them.
    """

    number: int
    mask: Bools
    scores: dict[str, Floats]
    alone: str


_UNASKED = StaticPart(UNKNOWN, np.zeros(0, np.bool_), {}, "")


class StaticParts:
    """Static parts of one policy and one epoch of a state, computed once for each combination of static keys."""

    def __init__(
        self, state: ClusterState, evaluator: Evaluator, gates: Sequence[ActivePlugin], scores: Sequence[ActivePlugin]
    ) -> None:
        self._state = state
        self._evaluator = evaluator
        self._gates = [plugin for plugin in gates if plugin.static]
        self._scores = [plugin for plugin in scores if plugin.static]
        only_scores = [plugin for plugin in self._scores if plugin not in self._gates]
        self._keys = [plugin.static_key for plugin in (*self._gates, *only_scores)]
        self._parts: dict[tuple[Any, ...], StaticPart | None] = {}

    def of(self, request: Request) -> StaticPart | None:
        """Return the static part of a shape, None if the compiled loop cannot use it."""
        key = tuple([static_key(request) for static_key in self._keys])
        part = self._parts.get(key, _UNASKED)
        if part is _UNASKED:
            part = self._parts[key] = self._computed(request)
        return part

    def _computed(self, request: Request) -> StaticPart | None:
        state = self._state
        mask: Bools = np.ones(len(state.reports), np.bool_)
        scores: dict[str, Floats] = {}
        for plugin in self._gates:
            answer = plugin.instance.pre_filter(request, state) if plugin.serves("pre-filter") else None
            if isinstance(answer, Refusal):
                return None
            if answer is SKIP:
                continue
            if answer is not None:
                narrowed: Bools = np.zeros(len(state.reports), np.bool_)
                narrowed[answer] = True
                mask &= narrowed
            if plugin.serves("filter"):
                mask &= self._evaluator.static_filter(request, plugin)
        for plugin in self._scores:
            verdict: None | Skip | NoScore = None
            if plugin.serves("pre-score"):
                verdict = plugin.instance.pre_score(request, state)
            if verdict is SKIP:
                continue
            if plugin.serves("normalize-score"):
                return None
            scores[plugin.name] = self._evaluator.static_score(request, plugin)
            if verdict is ALONE:
                return StaticPart(len(self._parts), mask, {plugin.name: scores[plugin.name]}, plugin.name)
        return StaticPart(len(self._parts), mask, scores, "")
