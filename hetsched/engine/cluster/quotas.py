"""Elastic quotas: guaranteed, maximum and current use of namespaces.

Per resource, with `used` summed over the placed pods of a namespace, and one new request:
    own maximum   used + request <= max;               a resource that `max` leaves out has no limit
    borrowing     sum of used + request <= sum of min  over all namespaces with a quota
A namespace may thus use more than its own min while other namespaces use less than theirs. A resource without a min in
any quota is not shared; only `max` limits its use. Pods of namespaces without a quota are not counted.
Source: scheduler-plugins, KEP-9 "Capacity scheduling" and `pkg/capacityscheduling`; there, a resource that no `min`
names can never be borrowed, so a quota in CPUs would refuse every pod that also requests memory.
Invariants: `used` is the sum over the placed pods; a cluster without quotas has no overhead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hetsched.contracts.objects.cluster import ElasticQuota
from hetsched.contracts.objects.workload import PodSpec

Amounts = Sequence[tuple[str, int]]


class Quotas:
    """The state's quotas by namespace, and the current use of each of these namespaces."""

    __slots__ = ("limits", "shared", "used")

    def __init__(self, quotas: Iterable[ElasticQuota] = ()) -> None:
        self.limits = {quota.namespace: quota for quota in quotas}
        self.used: dict[str, dict[str, int]] = {namespace: {} for namespace in self.limits}
        self.shared: dict[str, int] = {}  # sum of min over all quotas, by resource
        for quota in self.limits.values():
            for name, amount in quota.min:
                self.shared[name] = self.shared.get(name, 0) + amount

    def applies_to(self, pod: PodSpec) -> bool:
        """Return whether the pod's namespace has a quota."""
        return pod.namespace in self.limits

    def charge(self, pod: PodSpec, sign: int) -> None:
        """Add a pod's requests to the current use of its namespace (`sign` 1), or subtract them (-1)."""
        used = self.used.get(pod.namespace)
        if used is not None:
            for name, amount in pod.shape.requests:
                used[name] = used.get(name, 0) + sign * amount

    def over_max(self, namespace: str, requests: Amounts, *, empty: bool = False) -> tuple[str, ...]:
        """Return the resources in which the namespace would exceed its max; `empty` ignores its current use."""
        limits, used = dict(self.limits[namespace].max), {} if empty else self.used[namespace]
        return tuple(
            name for name, amount in requests if amount and used.get(name, 0) + amount > limits.get(name, 1e30)
        )

    def over_min(self, namespace: str, requests: Amounts = ()) -> tuple[str, ...]:
        """Return the resources in which the namespace would exceed its min, that is, borrow."""
        least, asked = dict(self.limits[namespace].min), dict(requests)
        names = asked.keys() if requests else self.used[namespace].keys()
        used = self.used[namespace]
        return tuple(
            name
            for name in names
            if name in self.shared and used.get(name, 0) + asked.get(name, 0) > least.get(name, 0)
        )

    def exhausted(self, requests: Amounts) -> tuple[str, ...]:
        """Return the resources of which the quotas of all namespaces together have less left than the request."""
        return tuple(
            name for name, amount in requests if amount and name in self.shared and amount > self.remaining(name)
        )

    def remaining(self, name: str) -> int:
        """Return how much of a shared resource all namespaces together may still use."""
        return self.shared[name] - sum(used.get(name, 0) for used in self.used.values())

    def copy(self) -> Quotas:
        other = Quotas()
        other.limits, other.shared = self.limits, self.shared
        other.used = {namespace: dict(used) for namespace, used in self.used.items()}
        return other
