"""Prefer the node whose instruction set the pod uses most completely, in the strict order of ISAMatch.

Problem: a program without special requirements on a core with every extension uses capacity that another program needs.
Rule: feasible nodes are sorted by four criteria; each criterion only breaks ties of the criteria before it.
    1  the pass: the first choice of `passes` (native, or for `qemu-first` emulated) before the second
    2  affinity = modules in the pod's requirement / modules of the node (1: the pod uses all modules), higher first
    3  number of feasible nodes with exactly the same instruction set, more first, so that rare nodes remain free
    4  utilisation = mean of requested / allocatable over CPU and memory, lower first; allocatable 0 is treated as 1
Score = 100 * position / (positions - 1). Positions are counted from the worst; equal nodes share a position, and a
single position scores 100. Raw score = 100 * affinity - utilisation. Pods without an ISA requirement are not scored
here. For pods with a requirement, `alone` ignores all other scores, as published.
Source: ISAMatch (Jiang et al., Computer Systems & Applications 2022 31(9)); the definition of utilisation is specific
to hetsched.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from hetsched.engine.cluster.columns import Bools, Floats, Ints, Vocabulary, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import ALONE, SKIP, NoScore, Skip
from hetsched.engine.isa.isa_fit import SECOND, IsaParams, run_on, same_isa

_PREPARED: StateKey[_Candidates] = StateKey("isa-affinity")


class IsaAffinityParams(IsaParams, frozen=True):
    """Comparison of instruction sets, and whether all other scores are skipped."""

    alone: Annotated[
        bool,
        msgspec.Meta(title="Ignore other scores", description="Skip all other scores for pods with an ISA request."),
    ] = True


class _Candidates(NamedTuple):
    """Criteria of each node, arrays (N,): `rank` of its pass, `affinity` 0-1, and `isa`, its instruction set's id."""

    rank: Ints
    affinity: Floats
    isa: Ints


@plugin(
    "isa-affinity",
    summary="Prefer the closest instruction set, then the most common one, then the least used node.",
    params=IsaAffinityParams,
)
class IsaAffinity:
    params: IsaAffinityParams

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip | NoScore:
        demand, mode = request.shape.isa, self.params.mode
        if demand is None or not demand.is_stated:
            return SKIP
        runs = [run_on(mode, self.params.passes, demand, offer) for offer in state.offers.values]
        known: Vocabulary[object] = Vocabulary()
        isa = [known.id(same_isa(mode, run.offered)) if run.rank >= SECOND else -1 for run in runs]
        offers = state.all_rows.static("isa_offer")
        request.memo[_PREPARED] = _Candidates(
            np.array([run.rank for run in runs], np.int64)[offers],
            np.array([run.affinity for run in runs], np.float64)[offers],
            np.array(isa, np.int64)[offers],
        )
        return ALONE if self.params.alone else None

    def score(self, request: Request, nodes: Window) -> Floats:
        candidates = request.memo[_PREPARED]
        capacity = nodes.static("allocatable")[:2]
        used = np.where(capacity > 0, nodes.load("requested")[:2] / np.maximum(capacity, 1), 1.0)
        # Round the utilisation, so that 0.1 + 0.2 is not greater than 0.3 + 0.
        raw: Floats = 100.0 * nodes.pick(candidates.affinity) - np.round((used[0] + used[1]) / 2.0, 9)
        return raw

    def normalize(self, request: Request, scores: Floats, feasible: Bools) -> Floats:
        candidates = request.memo[_PREPARED]
        rows = np.flatnonzero(feasible)
        isa = candidates.isa[rows] + 1
        sharing = np.bincount(isa)[isa]
        # With equal affinities, raw scores differ only by the utilisation.
        keys = np.stack((scores[rows], sharing, candidates.affinity[rows], candidates.rank[rows]))
        order = np.lexsort(keys)
        better = (np.diff(keys[:, order], axis=1) != 0).any(axis=0)
        position = np.concatenate(([0], np.cumsum(better)))
        normal: Floats = np.zeros(len(scores))
        normal[rows[order]] = 100.0 * position / position[-1] if position[-1] else 100.0
        return normal
