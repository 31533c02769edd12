"""Place each pod where it makes the least GPU capacity unusable, by current fragments and the expected rest of a GPU.

Rule, in GPUs:  gain = (F_before - F_after) + fill * (W(free) - W(free - asked)), summed over the GPUs used;
score = 50 + 5 * gain, cut to 0-100. F is the capacity of the node that the mix's shapes cannot use now
(`fragmentation`). W is the expected unused rest of a GPU after random pods of the mix have filled it until no other pod
fits (`expected_unused`).
Reason: F does not distinguish between free amounts of a GPU that the same shapes fit, but W does: after a pod of 810
milli, the remaining 190 milli stay unused, but after a pod of 470 milli, another pod of 470 milli fits. Unlike the
score of FGD, the gain is not rounded, so ties are rare. A shared pod uses the GPU with the largest gain. List this
plugin before `gpu-fit`.
Source: F from FGD (Weng et al., USENIX ATC 2023); W and the sum are specific to hetsched.
Example: sizes 600 and 400 equally often: W(400) = 0, W(600) = (W(0) + W(200)) / 2 = 100, W(1000) = (W(400) + W(600)) /
2 = 50. A pod of 400 on an empty GPU gains 50 - 100 = -50 by W, and 0 on a GPU with 400 milli free.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip
from hetsched.engine.gpu.fragmentation import POINTS_PER_GPU, FragmentationTrial, expected_unused, fragmented, whole_mix

_PREPARED: StateKey[FragmentationTrial] = StateKey("gpu-gradient")


class GpuGradientParams(Params, frozen=True):
    """Weight of the expected rest of a GPU."""

    fill: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=10,
            title="Weight of expected unused capacity",
            description=(
                "Weight of the GPU capacity that later pods are expected to leave unused, "
                "relative to the current fragmentation; 0 disables this term."
            ),
        ),
    ] = 1.0


@plugin(
    "gpu-gradient",
    summary="Place each pod where it makes the least GPU capacity unusable for other pods.",
    params=GpuGradientParams,
)
class GpuGradient:
    params: GpuGradientParams
    wants_mix = True

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        if not fragmented(state):
            return SKIP
        rests = state.once("expected-rests", lambda: expected_unused(state.mix))
        request.memo[_PREPARED] = FragmentationTrial(request, state, whole_mix(state), self.params.fill * rests)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        trial = request.memo[_PREPARED]
        gain = trial.gains(nodes)[0]
        score: Floats = np.clip(50.0 + POINTS_PER_GPU / WHOLE_CARD_MILLI * gain, 0.0, 100.0)
        return score

    def reserve(self, request: Request, row: int, state: ClusterState) -> None:
        trial = request.memo.get(_PREPARED)
        if trial is not None:
            trial.prefer(request, row, state)

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Drop the choice of a GPU; the plugin that allocated the GPU releases it."""
        request.near_cards = None
