"""What a workload is made of: shapes of pods, and how often each comes.

Problem: whether what is left of a node is of use depends on what will be asked for, and a scheduler sees one pod.
Rule: the mix counts the shapes of known pods. Its typical shapes are the most frequent ones that cover 95 % of them.
Whoever knows the workload tells the state (`ClusterState.use_mix`): a replay its list, a what-if what is booked and
what is asked for, a batch of decisions what is booked when it begins, so that a decision can be worked out again. A
scheduler whose policy wants a mix and finds none takes what is booked. A plugin that reads it says `wants_mix = True`.
Source: the "target workload" of FGD (Weng et al., USENIX ATC 2023, section 4.1); its simulator takes the same 95 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from hetsched.contracts.workload import PodSpec, Shape

TYPICAL_SHARE = 0.95


class Mix(msgspec.Struct, frozen=True):
    """Shapes with the number of pods of each, most frequent first."""

    counts: tuple[tuple[Shape, int], ...] = ()

    @property
    def pods(self) -> int:
        return sum(count for _, count in self.counts)

    def typical(self) -> list[tuple[Shape, float]]:
        """Return the most frequent shapes that cover 95 % of the pods, with their share of all pods."""
        total, covered = self.pods, 0
        typical: list[tuple[Shape, float]] = []
        for shape, count in self.counts:
            if covered >= TYPICAL_SHARE * total:
                break
            covered += count
            typical.append((shape, count / total))
        return typical


def mix_of(pods: Iterable[PodSpec]) -> Mix:
    """Count the shapes of these pods."""
    return mix_of_shapes(pod.shape for pod in pods)


def mix_of_shapes(shapes: Iterable[Shape]) -> Mix:
    """Count shapes; equal counts are ordered by content, so that the same pods give the same mix in any order."""
    # Most pods share the very same Shape, and comparing two that are only equal costs a hundred times more.
    seen: dict[int, Shape] = {}
    counted: Counter[int] = Counter()
    for shape in shapes:
        seen[id(shape)] = shape
        counted[id(shape)] += 1
    merged: Counter[Shape] = Counter()
    for key, shape in seen.items():
        merged[shape] += counted[key]
    return Mix(tuple(sorted(merged.items(), key=lambda item: (-item[1], msgspec.json.encode(item[0])))))
