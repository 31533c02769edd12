"""What booked pods demand of their neighbours, and how many of them a selector matches.

Problem: a rule between pods concerns every pod of the cluster; asking each of them again for every decision would cost
more than all the rest.
Rule: rules that booked pods state are counted per distinct rule and row as pods come and go, so a cluster without such
rules pays nothing for them. Pods that match a selector are counted per row once, then again only on the rows in the
ledger's log since. Pods are neighbours when their nodes have the same value of a topology label.
Invariants: every count equals a fresh scan of the bookings; the namespaces of a state never change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from hetsched.contracts.workload import LabelSelector, PodSpec, PodTerm

from .columns import Bools, Ints, Rows
from .selectors import selects

if TYPE_CHECKING:
    from .state import Booking, ClusterState

NAMESPACE_NAME = "kubernetes.io/metadata.name"
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - Kubernetes' own wildcard, not a bind address
_KEPT_TALLIES = 4096

Holders = dict[int, int]  # row -> booked pods there
K = TypeVar("K")


class Matcher(NamedTuple):
    """The pods that a term means, wherever they run."""

    selector: LabelSelector | None
    namespaces: tuple[str, ...]
    namespace_selector: LabelSelector | None = None

    @staticmethod
    def of(term: PodTerm, namespace: str) -> Matcher:
        """Read a term that a pod of `namespace` states."""
        own = not term.namespaces and term.namespace_selector is None
        return Matcher(term.selector, (namespace,) if own else term.namespaces, term.namespace_selector)

    def matches(self, pod: PodSpec, namespaces: dict[str, dict[str, str]]) -> bool:
        """Tell whether the term means `pod`; `namespaces` maps a namespace to its labels."""
        if pod.namespace not in self.namespaces:
            if self.namespace_selector is None:
                return False
            labels = {**namespaces.get(pod.namespace, {}), NAMESPACE_NAME: pod.namespace}
            if not selects(self.namespace_selector, labels):
                return False
        return selects(self.selector, pod.labels)


class Rule(NamedTuple):
    """A term as booked pods state it."""

    topology_key: str
    matcher: Matcher
    weight: int


class Neighbours:
    """The rules between pods that booked pods state.

    `repelling` are required anti-affinity terms, `attracting` required affinity, `preferring` the preferred terms of
    either kind (weight below 0: rather not), `ports` the host ports in use, by (protocol, port) and address.
    """

    def __init__(self) -> None:
        self.repelling: dict[Rule, Holders] = {}
        self.attracting: dict[Rule, Holders] = {}
        self.preferring: dict[Rule, Holders] = {}
        self.ports: dict[tuple[str, int], dict[str, Holders]] = {}
        self._tallies: dict[tuple[Matcher, ...], _Tally] = {}

    def charge(self, booking: Booking, sign: int) -> None:
        """Count the rules of a pod that comes (`sign` 1) or goes (-1)."""
        shape, namespace, row = booking.pod.shape, booking.pod.namespace, booking.row
        for terms, held in (
            (shape.anti_affinity, self.repelling),
            (shape.affinity, self.attracting),
            (shape.preferred_affinity, self.preferring),
        ):
            for term in terms:
                _count(held, Rule(term.topology_key, Matcher.of(term, namespace), term.weight), row, sign)
        for port in shape.host_ports:
            addresses = self.ports.setdefault((port.protocol, port.port), {})
            _count(addresses, port.ip or ANY_ADDRESS, row, sign)

    def matching(self, state: ClusterState, matchers: tuple[Matcher, ...]) -> Ints:
        """Return (N,) how many pods booked on each node every one of `matchers` means; not to be written to."""
        tally = self._tallies.get(matchers)
        if tally is None:
            if len(self._tallies) >= _KEPT_TALLIES:
                self._tallies.clear()
            tally = self._tallies[matchers] = _Tally(np.zeros(len(state.on_row), np.int64))
            rows = set(range(len(state.on_row)))
        else:
            rows = set(state.log[tally.seen :])
        for row in rows:
            pods = [booking.pod for booking in state.on_row[row].values()]
            tally.counts[row] = sum(all(m.matches(pod, state.namespaces) for m in matchers) for pod in pods)
        tally.seen = len(state.log)
        return tally.counts

    def log_restarted(self) -> None:
        """Drop the counts that the ledger's log can no longer bring up to date."""
        self._tallies.clear()

    def copy(self) -> Neighbours:
        other = Neighbours()
        for ours, theirs in (
            (self.repelling, other.repelling),
            (self.attracting, other.attracting),
            (self.preferring, other.preferring),
        ):
            theirs.update((rule, dict(rows)) for rule, rows in ours.items())
        for port, addresses in self.ports.items():
            other.ports[port] = {address: dict(rows) for address, rows in addresses.items()}
        other._tallies = {key: _Tally(tally.counts.copy(), tally.seen) for key, tally in self._tallies.items()}
        return other


class _Tally:
    """Matching pods per row, and up to where in the ledger's log they hold."""

    __slots__ = ("counts", "seen")

    def __init__(self, counts: Ints, seen: int = 0) -> None:
        self.counts = counts
        self.seen = seen


def _count(held: dict[K, Holders], key: K, row: int, sign: int) -> None:
    rows = held.setdefault(key, {})
    rows[row] = rows.get(row, 0) + sign
    if not rows[row]:
        del rows[row]
        if not rows:
            del held[key]


def beside(state: ClusterState, topology_key: str, rows: Rows) -> Bools:
    """Return (N,) which nodes are in the same domain of a topology label as one of `rows`."""
    ids, values = state.label(topology_key)
    domains = np.zeros(len(values) + 1, np.bool_)
    domains[ids[rows]] = True
    domains[-1] = False  # id -1: nodes without the label are in no domain, not in one with each other
    inside: Bools = domains[ids]
    return inside


def per_domain(state: ClusterState, topology_key: str, counts: Ints) -> Ints:
    """Return (N,) the sum of `counts` (N,) over each node's domain, 0 for nodes without the topology label."""
    ids, values = state.label(topology_key)
    sums = np.zeros(len(values) + 1, np.int64)
    np.add.at(sums, ids, counts)
    sums[-1] = 0
    totals: Ints = sums[ids]
    return totals
