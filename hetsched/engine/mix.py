"""What a workload is made of: shapes of pods, and how often each comes.

Problem: whether what is left of a node is of use depends on what will be asked for, and a scheduler sees one pod.
Rule: the mix counts the shapes of known pods. Its typical shapes are the most frequent ones that cover 95 % of them.
A state's mix is set by who knows the workload (`ClusterState.use_mix`); until then it is what ran when the state was
built.
Source: the "target workload" of FGD (Weng et al., USENIX ATC 2023, section 4.1); its simulator takes the same 95 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from hetsched.contracts.workload import PodSpec, Shape

_TYPICAL_SHARE = 0.95


class Mix(msgspec.Struct, frozen=True):
    """Shapes with the number of pods of each, most frequent first; equal counts in the order of arrival."""

    counts: tuple[tuple[Shape, int], ...] = ()

    @property
    def pods(self) -> int:
        return sum(count for _, count in self.counts)

    def typical(self) -> list[tuple[Shape, float]]:
        """Return the most frequent shapes that cover 95 % of the pods, with their share of all pods."""
        total, covered = self.pods, 0
        typical: list[tuple[Shape, float]] = []
        for shape, count in self.counts:
            if covered >= _TYPICAL_SHARE * total:
                break
            covered += count
            typical.append((shape, count / total))
        return typical


def mix_of(pods: Iterable[PodSpec]) -> Mix:
    """Count the shapes of these pods."""
    # Most pods share the very same Shape, and comparing two that are only equal costs a hundred times more.
    seen: list[Shape] = []
    counted: Counter[int] = Counter()
    for pod in pods:
        key = id(pod.shape)
        if key not in counted:
            seen.append(pod.shape)
        counted[key] += 1
    merged: Counter[Shape] = Counter()
    for shape in seen:
        merged[shape] += counted[id(shape)]
    return Mix(tuple(merged.most_common()))
