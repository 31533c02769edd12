"""Place each pod where it costs the fewest GPUs: fragments now, and the rest that a card will be left with.

Rule, in GPUs:  gain = (F_before - F_after) + fill * (W(free) - W(free - asked)), summed over the cards taken;
score = 50 + 5 * gain, cut to 0-100. F counts what the mix's shapes cannot use of the node now (`fragments`). W looks
further: the expected rest of a card once random pods of the mix have filled it until none fits (`expected_rests`).
Reason: F takes 210 and 190 milli for alike where no shape of 200 exists yet both strand; W knows that 1000 - 810 stays
190 for good, and 1000 - 470 will still be filled by another 470. Unlike FGD's score the gain is not rounded, so few
nodes tie, and the tie rule decides little. A shared pod takes the card that gains most; stand this before `gpu-fit`.
Source: F from FGD (Weng et al., USENIX ATC 2023); W and the sum are this project's.
Worked: sizes 600 and 400 equally often: W(400) = 0, W(600) = (W(0) + W(200)) / 2 = 100,
W(1000) = (W(400) + W(600)) / 2 = 50. A pod of 400 on an empty card gains 50 - 100 = -50 by W, on a rest of 400 none.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Skip
from hetsched.engine.gpu.fragmentation import POINTS_PER_GPU, Trial, expected_rests, fragmented, whole_mix


class GpuGradientParams(Params, frozen=True):
    """How much the expected rest of a card counts."""

    fill: Annotated[
        float,
        msgspec.Meta(ge=0, le=10, title="Rest of a card", description="Weight of W beside F; 0 leaves it out."),
    ] = 1.0


@plugin("gpu-gradient", summary="Place each pod where it costs the fewest GPUs.", params=GpuGradientParams)
class GpuGradient:
    params: GpuGradientParams
    wants_mix = True

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        if not fragmented(state):
            return SKIP
        rests = state.once("expected-rests", lambda: expected_rests(state.mix))
        request.memo["gpu-gradient"] = Trial(request, state, whole_mix(state), self.params.fill * rests)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        trial: Trial = request.memo["gpu-gradient"]
        gain = trial.gains(nodes)[0]
        score: Floats = np.clip(50.0 + POINTS_PER_GPU / WHOLE_CARD_MILLI * gain, 0.0, 100.0)
        return score

    def reserve(self, request: Request, row: int, state: ClusterState) -> None:
        trial: Trial | None = request.memo.get("gpu-gradient")
        if trial is not None:
            trial.prefer(request, row, state)

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Name no card any more; whoever granted it gives it back."""
        request.near_cards = None
