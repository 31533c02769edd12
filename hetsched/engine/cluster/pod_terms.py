"""Inter-pod terms of placed pods: affinity, anti-affinity and host ports.

An inter-pod rule can apply to every pod of the cluster, and evaluating all rules again for every decision would
dominate its cost. The rules of placed pods are therefore counted per distinct rule and row when pods are added and
removed. A cluster without such rules has no overhead. Pods are neighbours if their nodes have the same value of a
topology label.
Invariant: every count equals a full scan of the placed pods.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from hetsched.contracts.objects.workload import PodSpec

from .columns import Bools, Ints, Rows
from .placed_pod import PlacedPod
from .selector_counts import Matcher, SelectorCounts
from .state_view import StateView

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - Kubernetes' own wildcard, not a bind address
_KEPT_ANSWERS = 4096

Holders = dict[int, int]  # row -> number of placed pods with the rule
K = TypeVar("K")


class PlacedTerm(NamedTuple):
    """An inter-pod term of placed pods."""

    topology_key: str
    matcher: Matcher
    weight: int


class InterPodTerms:
    """The inter-pod rules of placed pods.

    `repelling` are required anti-affinity terms, `attracting` required affinity, `preferring` the preferred terms of
    either kind (negative weight: anti-affinity), `ports` the host ports in use, by (protocol, port) and address.
    """

    def __init__(self) -> None:
        self.repelling: dict[PlacedTerm, Holders] = {}
        self.attracting: dict[PlacedTerm, Holders] = {}
        self.preferring: dict[PlacedTerm, Holders] = {}
        self.ports: dict[tuple[str, int], dict[str, Holders]] = {}
        self._tallies = SelectorCounts()
        self._selecting: dict[tuple[int, str, frozenset[tuple[str, str]]], list[PlacedTerm]] = {}

    def charge(self, placed: PlacedPod, sign: int) -> None:
        """Add the rules of a placed pod to the counts (`sign` 1), or subtract them (-1)."""
        shape, namespace, row = placed.pod.shape, placed.pod.namespace, placed.row
        for terms, held in (
            (shape.anti_affinity, self.repelling),
            (shape.affinity, self.attracting),
            (shape.preferred_affinity, self.preferring),
        ):
            for term in terms:
                rule = PlacedTerm(term.topology_key, Matcher.of(term, namespace), term.weight)
                if _count(held, rule, row, sign):
                    self._selecting.clear()
        for port in shape.host_ports:
            addresses = self.ports.setdefault((port.protocol, port.port), {})
            _count(addresses, port.ip or ANY_ADDRESS, row, sign)

    def terms_selecting(self, rules: dict[PlacedTerm, Holders], pod: PodSpec, state: StateView) -> list[PlacedTerm]:
        """Return the terms of `rules`, one of this object's mappings, that select `pod`."""
        key = (id(rules), pod.namespace, frozenset(pod.labels.items()))
        found = self._selecting.get(key)
        if found is None:
            if len(self._selecting) >= _KEPT_ANSWERS:
                self._selecting.clear()
            found = [rule for rule in rules if rule.matcher.matches(pod, state.namespaces)]
            self._selecting[key] = found
        return found

    def matching(self, state: StateView, matchers: tuple[Matcher, ...]) -> Ints:
        """Return the number of placed pods on each node that match all of `matchers`, shape (N,), read-only."""
        if self._tallies.overgrown:
            self._tallies = SelectorCounts()
        return self._tallies.matching(state, matchers)

    def drop_matches(self) -> None:
        """Drop the cached matches, after the state's namespaces changed or its change log was restarted."""
        self._tallies = SelectorCounts()
        self._selecting.clear()

    def copy(self, state: StateView) -> InterPodTerms:
        """Return a copy of these rules for a copy of `state`, whose change log starts empty."""
        other = InterPodTerms()
        for ours, theirs in (
            (self.repelling, other.repelling),
            (self.attracting, other.attracting),
            (self.preferring, other.preferring),
        ):
            theirs.update((rule, dict(rows)) for rule, rows in ours.items())
        for port, addresses in self.ports.items():
            other.ports[port] = {address: dict(rows) for address, rows in addresses.items()}
        other._tallies = self._tallies.copy(state)
        return other


def _count(held: dict[K, Holders], key: K, row: int, sign: int) -> bool:
    """Add `sign` to the count of `key` on a row; return whether `key` was added or removed."""
    rows = held.setdefault(key, {})
    came = not rows
    rows[row] = rows.get(row, 0) + sign
    if not rows[row]:
        del rows[row]
        if not rows:
            del held[key]
            return True
    return came


def in_same_domain(state: StateView, topology_key: str, rows: Rows) -> Bools:
    """Return the (N,) mask of nodes in the same domain of a topology label as one of `rows`."""
    ids, values = state.label(topology_key)
    domains = np.zeros(len(values) + 1, np.bool_)
    domains[ids[rows]] = True
    domains[-1] = False  # Nodes without the label have id -1: they belong to no domain.
    inside: Bools = domains[ids]
    return inside


def per_domain(state: StateView, topology_key: str, counts: Ints) -> Ints:
    """Sum `counts` (N,) over the domain of each node, shape (N,); 0 for nodes without the topology label."""
    ids, values = state.label(topology_key)
    sums = np.zeros(len(values) + 1, np.int64)
    np.add.at(sums, ids, counts)
    sums[-1] = 0
    totals: Ints = sums[ids]
    return totals
