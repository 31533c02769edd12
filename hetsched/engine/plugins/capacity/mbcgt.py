"""Place a pod on the node where it increases the product of all nodes' utilities S the most, to balance four resources.

Rule: gain_i = ln S_i(with the pod) - ln S_i(now), S = 1 - dispersion of the node's utilisations of CPU, memory, network
and disk, measured if a fresh sample exists (see `engine.framework.nash`). The score maps the smallest gain of the
feasible nodes to 0 and the greatest to 100; it is 100 for a single candidate and if all gains are equal. Of nodes with
equal gains, the one with the lower mean utilisation wins, then the first by name.
The publication's constraints (9)-(12) forbid load beyond the measured free capacity; the plugin `measured-fit`
implements them.
An empty node is perfectly balanced, so this score fills unbalanced nodes and can leave nodes idle. Combine it with
`least-allocated` (with measured use) to spread pods too.
Source: MBCGT (Li et al., Journal of Xidian University 2021 48(6)), equation (6) and its algorithm, reconstructed.
Example: demand (.2, 0, 0, 0) on A = (.3, .1, .1, .3) and B = (.1, .7, .7, .7): S_A .99 -> .9725, S_B .9325 -> .97; A
has the greater S afterwards, B the greater gain: B is chosen (products .90686 against .9603).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.engine.cluster.columns import Bools, Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework import nash
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey

_PREPARED: StateKey[nash.FourResources] = StateKey("mbcgt")


class MbcgtParams(Params, frozen=True):
    """Measure of unevenness."""

    dispersion: Annotated[
        Literal["variance", "std"],
        msgspec.Meta(title="Dispersion", description="Variance or standard deviation of a node's four utilisations."),
    ] = "variance"


@plugin(
    "mbcgt",
    summary=(
        "Prefer the node on which the pod increases the product of the utilities of all nodes most; "
        "a utility states how evenly a node uses four resources."
    ),
    params=MbcgtParams,
)
class Mbcgt:
    params: MbcgtParams
    measures = True

    def pre_score(self, request: Request, state: ClusterState) -> None:
        request.memo[_PREPARED] = nash.resources_of(state)

    def score(self, request: Request, nodes: Window) -> Floats:
        gains, mean = nash.gain(request, nodes, request.memo[_PREPARED], self.params.dispersion)
        return nash.ranked(np.log(gains), mean)

    def normalize(self, request: Request, scores: Floats, feasible: Bools) -> Floats:
        there = scores[feasible]
        # Do not stretch equal gains to 0-100: they differ only by their means, by less than a millionth of a point.
        span = 1.0 if nash.all_equal(there) else float(there.max() - there.min())
        points: Floats = np.clip(100.0 - 100.0 * (there.max() - scores) / span, 0.0, 100.0)
        return points
