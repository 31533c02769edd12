"""Workload mix: shapes of pods and their frequencies.

Whether the remaining capacity of a node is useful depends on future requests, but a scheduler sees one pod at a time.
The mix counts the shapes of known pods; its typical shapes are the most frequent ones that cover 95 % of them. The
caller sets it on the state (`ClusterState.use_mix`): a replay counts the pods of its list, a what-if the placed and the
requested pods, a batch of decisions the pods that are placed at its start, so that a decision can be recomputed. If no
mix is set, a scheduler whose policy needs one uses the placed pods. A plugin that reads it declares `wants_mix = True`.
Source: the "target workload" of FGD (Weng et al., USENIX ATC 2023, section 4.1); its simulator takes the same 95 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from hetsched.contracts.documents import encode
from hetsched.contracts.objects.workload import PodSpec, Shape

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
    # Most pods share one Shape object; comparing equal but distinct shapes costs a hundred times more.
    seen: dict[int, Shape] = {}
    counted: Counter[int] = Counter()
    for shape in shapes:
        seen[id(shape)] = shape
        counted[id(shape)] += 1
    merged: Counter[Shape] = Counter()
    for key, shape in seen.items():
        merged[shape] += counted[key]
    return Mix(tuple(sorted(merged.items(), key=lambda item: (-item[1], encode(item[0])))))
