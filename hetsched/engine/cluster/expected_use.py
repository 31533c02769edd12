"""Expected use of a pod: declared, else learnt from earlier pods of its controller, else requested.

The first known value is used:
    declared    the annotation `hetsched.io/expected-usage`; the request is used for resources that it omits
    learnt      per resource, the 95th percentile of the measured use of pods of the same namespace and controller, by
                nearest rank: of n values in rising order the one at position ceil(0.95 n). At least LEAST_PODS pods
                must have been measured; below 20 pods this is the greatest value
    requested
The load profile, if a pod states none, is learnt in the same way: `busy` if such pods use half of the requested CPU or
more on average, `idle` if the 95th percentile is a tenth of it or less, else unknown. A bare pod has no controller, so
nothing is learnt for it. A node's measured use between samples is the sample, plus the expected use of the pods placed
since, minus that of the pods removed since (`state.ClusterState`).
Source: our own; nearest rank as in NIST/SEMATECH e-Handbook, 7.2.6.2.
Example: 12 pods that used 1..12 -> position ceil(11.4) = 12 -> 12;  40 pods that used 1..40 -> position 38 -> 38.
Invariants: the same pod has the same expected use for every caller; applying it is idempotent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from hetsched.contracts.objects.cluster import PodUsage
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.contracts.units import CPU

LEAST_PODS = 5
BUSY_RATIO, IDLE_RATIO = 0.5, 0.1
DECLARED, REQUESTED = "declared", "requested"
_MOST_KEPT = 20_000


class LearntUse(msgspec.Struct, frozen=True):
    """Measured use of the pods of one controller: the expected use of a pod for each resource, in base units, and the
    number of measured pods."""

    amounts: tuple[tuple[str, int], ...]
    pods: int
    mean_cpu_millis: float | None = None

    def load_profile(self, shape: Shape) -> str:
        """Return the load profile of pods of a shape, empty if unknown."""
        asked, most = shape.request(CPU), dict(self.amounts).get(CPU)
        if not asked or most is None or self.mean_cpu_millis is None:
            return ""
        if self.mean_cpu_millis >= BUSY_RATIO * asked:
            return "busy"
        return "idle" if most <= IDLE_RATIO * asked else ""


class UsageHistory:
    """Learnt usage by `namespace/Kind/name` of the controller."""

    def __init__(self, learnt: dict[str, LearntUse] | None = None) -> None:
        self.learnt = learnt or {}
        self._shapes: dict[tuple[int, str], tuple[Shape, Shape]] = {}

    def __bool__(self) -> bool:
        return bool(self.learnt)

    def applied(self, pod: PodSpec) -> PodSpec:
        """Return the pod with the learnt use and load profile filled in where it states none.

        Pods of one shape and one controller keep sharing one shape.
        """
        shape = pod.shape
        if not pod.controller or (shape.expected_usage and shape.load_profile):
            return pod
        controller = f"{pod.namespace}/{pod.controller}"
        learnt = self.learnt.get(controller)
        if learnt is None:
            return pod
        key = (id(shape), controller)
        known = self._shapes.get(key)
        if known is None or known[0] is not shape:
            if len(self._shapes) >= _MOST_KEPT:
                self._shapes.clear()
            known = self._shapes[key] = (shape, _with(learnt, shape))
        if known[1] is shape:
            return pod
        basis = pod.expected_basis
        if not shape.expected_usage:
            basis = f"learnt p95 of {learnt.pods} pods of {pod.controller}"
        return msgspec.structs.replace(pod, shape=known[1], expected_basis=basis)


def _with(learnt: LearntUse, shape: Shape) -> Shape:
    use = shape.expected_usage or learnt.amounts
    profile = shape.load_profile or learnt.load_profile(shape)
    if (use, profile) == (shape.expected_usage, shape.load_profile):
        return shape
    return msgspec.structs.replace(shape, expected_usage=use, load_profile=profile)


def basis_of(pod: PodSpec) -> str:
    """Return the source of a pod's expected use, after the learnt usage was applied to it."""
    return pod.expected_basis or (DECLARED if pod.shape.expected_usage else REQUESTED)


def learn(samples: Iterable[PodUsage]) -> UsageHistory:
    """Return the learnt usage of each controller, from one sample of measured use per pod."""
    by_controller: dict[str, list[PodUsage]] = defaultdict(list)
    for sample in samples:
        if sample.controller:
            by_controller[f"{sample.namespace}/{sample.controller}"].append(sample)
    learnt: dict[str, LearntUse] = {}
    for controller, measured in by_controller.items():
        values: dict[str, list[int]] = defaultdict(list)
        for sample in measured:
            for resource, amount in sample.amounts.items():
                values[resource].append(amount)
        known = {resource: p95(found) for resource, found in values.items() if len(found) >= LEAST_PODS}
        if known:
            mean = sum(values[CPU]) / len(values[CPU]) if CPU in known else None
            learnt[controller] = LearntUse(tuple(sorted(known.items())), len(measured), mean)
    return UsageHistory(learnt)


def p95(values: Sequence[int]) -> int:
    """Return the 95th percentile by nearest rank of one or more values."""
    position = -(-95 * len(values) // 100)
    return sorted(values)[position - 1]
