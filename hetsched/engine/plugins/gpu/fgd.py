"""Fragmentation gradient descent: place each pod where it fragments the GPUs least.

Rule: score = int(100 * sigmoid((F_before - F_after) / 1000)), F in milli-GPUs as in `fragmentation`, over the workload
mix, in which pods with equal CPU and GPU requests are one shape. A shared pod uses the GPU with the highest score; of
equal GPUs, the first. Whole GPUs are the free GPUs with the lowest indices. List the plugin before `gpu-fit`, which
allocates the selected GPU.
Without a mix or without GPUs the plugin is inactive.
Source: Weng et al., "Beware of Fragmentation" (USENIX ATC 2023), and its simulator, whose int() causes many ties.
Example: one shape of 500 milli, GPUs of 1000 and 300 free: F = 300. A pod of 300 milli on the second GPU leaves F = 0:
int(100 * sigmoid(0.3)) = int(57.44) = 57; on the first GPU it leaves 700 and 300, so F remains 300: int(50.0) = 50.
"""

from __future__ import annotations

from hetsched.engine.cluster.columns import Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip
from hetsched.engine.gpu.fragmentation import FragmentationTrial, fragmented, published_mix

_PREPARED: StateKey[FragmentationTrial] = StateKey("fgd")


@plugin(
    "fgd", summary="Place each pod where it adds the least GPU fragmentation for the workload mix (FGD, as published)."
)
class Fgd:
    wants_mix = True

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        if not fragmented(state):
            return SKIP
        request.memo[_PREPARED] = FragmentationTrial(request, state, published_mix(state), published=True)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        trial = request.memo[_PREPARED]
        return trial.gains(nodes)[0]

    def reserve(self, request: Request, row: int, state: ClusterState) -> None:
        trial = request.memo.get(_PREPARED)
        if trial is not None:
            trial.prefer(request, row, state)

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Drop the choice of a GPU; the plugin that allocated the GPU releases it."""
        request.near_cards = None
