"""Number of placed pods per node that a selector matches.

A cluster has tens of thousands of pods and hundreds of selectors, but each decision changes only one pod. Pods with
equal namespace, labels and `terminating` are of one kind, and a selector is evaluated once per kind. Additions and
removals on the rows of the state's change log are recorded once, in a journal; every count continues from its position
in the journal. Recording starts with the first selector. The counts are dropped when the state's namespaces change.
Invariant: every count equals a full scan of the placed pods.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import numpy as np

from hetsched.contracts.objects.labels import selects
from hetsched.contracts.objects.workload import LabelSelector, PodSpec, PodTerm

from .columns import Ints
from .state_view import StateView

NAMESPACE_NAME = "kubernetes.io/metadata.name"
_KEPT_TALLIES = 4096
_MOST_KINDS = 100_000
_MOST_ENTRIES = 200_000


class Matcher(NamedTuple):
    """Selector and namespaces of an inter-pod term, and whether terminating pods match it."""

    selector: LabelSelector | None
    namespaces: tuple[str, ...]
    namespace_selector: LabelSelector | None = None
    with_terminating: bool = True

    @staticmethod
    def of(term: PodTerm, namespace: str) -> Matcher:
        """Return the matcher of an inter-pod term that belongs to a pod of `namespace`."""
        own = not term.namespaces and term.namespace_selector is None
        return Matcher(term.selector, (namespace,) if own else term.namespaces, term.namespace_selector)

    def matches(self, pod: PodSpec, namespaces: dict[str, dict[str, str]]) -> bool:
        """Return whether the term selects `pod`; `namespaces` maps a namespace to its labels."""
        if pod.terminating and not self.with_terminating:
            return False
        if pod.namespace not in self.namespaces:
            if self.namespace_selector is None:
                return False
            labels = {**namespaces.get(pod.namespace, {}), NAMESPACE_NAME: pod.namespace}
            if not selects(self.namespace_selector, labels):
                return False
        return selects(self.selector, pod.labels)


class _CachedCounts:
    """Cached counts of one selector.

    `counts` (N,): matching pods per row; `hits`: whether each kind of pods matches; `read`: journal entries applied.
    """

    __slots__ = ("counts", "hits", "read")

    def __init__(self, counts: Ints, hits: list[bool], read: int) -> None:
        self.counts = counts
        self.hits = hits
        self.read = read


class SelectorCounts:
    """Counts of matching pods per row, for every selector that was queried."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, bool, frozenset[tuple[str, str]]], int] = {}
        self._faces: list[PodSpec] = []  # one pod of each kind
        self._on_row: list[dict[str, tuple[PodSpec, int]]] = []
        self._journal: list[tuple[int, int, int]] = []  # kind, row, +1 (added) or -1 (removed)
        self._seen = 0
        self._tallies: dict[tuple[Matcher, ...], _CachedCounts] = {}

    def matching(self, state: StateView, matchers: tuple[Matcher, ...]) -> Ints:
        """Return the number of placed pods on each node that match all of `matchers`, shape (N,), read-only."""
        self._follow(state)
        tally = self._tallies.get(matchers)
        fresh = tally is None
        if tally is None:
            if len(self._tallies) >= _KEPT_TALLIES:
                self._tallies.clear()
            tally = self._tallies[matchers] = _CachedCounts(np.zeros(len(self._on_row), np.int64), [], 0)
        for face in islice(self._faces, len(tally.hits), None):
            tally.hits.append(all(matcher.matches(face, state.namespaces) for matcher in matchers))
        if fresh:
            for row, pods in enumerate(self._on_row):
                for _, kind in pods.values():
                    if tally.hits[kind]:
                        tally.counts[row] += 1
        else:
            for kind, row, sign in islice(self._journal, tally.read, None):
                if tally.hits[kind]:
                    tally.counts[row] += sign
        tally.read = len(self._journal)
        return tally.counts

    @property
    def overgrown(self) -> bool:
        """Return whether a full recount costs less than an update from the journal."""
        return len(self._journal) > _MOST_ENTRIES or len(self._faces) > _MOST_KINDS

    def _follow(self, state: StateView) -> None:
        """Append the pods added and removed since the last call to the journal."""
        if not self._on_row:
            self._on_row = [{} for _ in state.on_row]
            changed = set(range(len(state.on_row)))
        else:
            changed = set(state.log[self._seen :])
        self._seen = len(state.log)
        for row in changed:
            known, current = self._on_row[row], state.on_row[row]
            for key in [key for key, (pod, _) in known.items() if key not in current or current[key].pod is not pod]:
                self._journal.append((known.pop(key)[1], row, -1))
            for key, placed in current.items():
                if key not in known:
                    kind = self._kind(placed.pod)
                    known[key] = (placed.pod, kind)
                    self._journal.append((kind, row, 1))

    def _kind(self, pod: PodSpec) -> int:
        key = (pod.namespace, pod.terminating, frozenset(pod.labels.items()))
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = len(self._faces)
            self._faces.append(pod)
        return kind

    def copy(self, state: StateView) -> SelectorCounts:
        """Return a copy of these counts for a copy of `state`, whose change log starts empty."""
        other = SelectorCounts()
        if not self._on_row:
            return other
        self._follow(state)
        other._kinds, other._faces = dict(self._kinds), list(self._faces)
        other._on_row = [dict(pods) for pods in self._on_row]
        other._journal = list(self._journal)
        other._tallies = {key: _CachedCounts(t.counts.copy(), list(t.hits), t.read) for key, t in self._tallies.items()}
        return other
