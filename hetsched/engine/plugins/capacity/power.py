"""Keep pods off nodes without enough power, and prefer nodes with much spare power.

Problem: a rack at its power limit slows all its pods down, and a node that is switched off ends its pods; CPU and
memory requests do not show this.
Rule: a node in the state `off` or `maintenance` accepts no pods. left = headroom in the node's report - watts of the
pods placed since + watts of the pods that ended since. A pod fits if left >= its expected watts. If the headroom of the
node or the draw of the pod is unknown, the pod fits, unless `unknown` is "refuse".
    score = 100 * state * part,   state: 1 for on and unknown, a parameter for saving and capped
                                  part: (left - watts) / headroom between 0 and 1, 0.5 with an unknown headroom
Facts: attributes `powerState` (on, saving, capped, off, maintenance) and `powerHeadroomWatts` of a node's
NodeResourceTopology, written by an external system; the draw of a pod is its annotation `hetsched.io/expected-watts`.
Source: reconstructed; cassini (Tencent 2022) has a power-aware plugin, but its code is not published.
Example: headroom 1000 W, 200 W placed since, a pod of 300 W: left = 800, so it fits. The score is 100 * (800 - 300) /
1000 = 50 if the node is on, and 25 if it is capped at 0.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.objects.node_report import POWER_STATES
from hetsched.contracts.objects.wishes import EXPECTED_WATTS
from hetsched.contracts.params import Params
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import UNKNOWN, Bools, Floats, Ints, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Refusal, Skip

_TAKES_NOTHING = [1 + POWER_STATES.index(state) for state in ("off", "maintenance")]
_SAVING, _CAPPED = (1 + POWER_STATES.index(state) for state in ("saving", "capped"))
OFF = Refusal("PowerOff", Message("the node is powered off or will be powered off soon"))
DRAW_UNKNOWN = Refusal(
    "PowerDrawUnknown", Message("the expected power of the pod is unknown ({name})", name=EXPECTED_WATTS), unknown=True
)
HEADROOM_UNKNOWN = Refusal("PowerHeadroomUnknown", Message("the node's power headroom is unknown"), unknown=True)

_Part = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class PowerParams(Params, frozen=True):
    """Score of each power state, and the treatment of unknown facts."""

    saving: Annotated[
        _Part,
        msgspec.Meta(
            title="Power saving",
            description=("Score factor of a node in power-saving mode; a node in normal mode has factor 1."),
        ),
    ] = 0.5
    capped: Annotated[
        _Part, msgspec.Meta(title="Capped power", description="Score factor of a node with capped power.")
    ] = 0.5
    unknown: Annotated[
        Literal["allow", "refuse"],
        msgspec.Meta(title="Unknown facts", description="Whether unknown power draw or headroom excludes a node."),
    ] = "allow"


@plugin(
    "power",
    summary="Exclude nodes without enough power; prefer nodes with the most headroom.",
    params=PowerParams,
    helped_by=frozenset({Event.NODE_ADDED, Event.NODE_CAPACITY, Event.POD_RELEASED}),
)
class Power:
    params: PowerParams

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        return None if state.columns.layout.power else SKIP

    def filter(self, request: Request, nodes: Window) -> Bools:
        watts = request.shape.expected_watts
        fits = ~_powered_off(nodes)
        if watts is None:
            return fits if self.params.unknown == "allow" else fits & False
        known = _known(nodes)
        enough = _headroom(nodes) >= watts
        return fits & (enough | ~known if self.params.unknown == "allow" else enough & known)

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        watts = request.shape.expected_watts
        off, known = _powered_off(nodes), _known(nodes)
        yield OFF, off
        if self.params.unknown == "refuse":
            yield (DRAW_UNKNOWN, ~off) if watts is None else (HEADROOM_UNKNOWN, ~off & ~known)
        if watts is not None:
            short = ~off & known & (_headroom(nodes) < watts)
            most = int(_headroom(nodes)[short].max(initial=0))
            text = Message(
                "the pod is expected to draw {watts} W, but the node has at most {most} W of headroom",
                watts=watts,
                most=max(most, 0),
            )
            yield Refusal("PowerInsufficient", text, (EXPECTED_WATTS,), EXPECTED_WATTS, resolvable=True), short

    def waits(self, request: Request) -> Message:
        watts = request.shape.expected_watts
        return (
            Message("a node that is powered on")
            if watts is None
            else Message("a node with {watts} W of power headroom", watts=watts)
        )

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        return None if state.columns.layout.power else SKIP

    def score(self, request: Request, nodes: Window) -> Floats:
        state, headroom = nodes.static("power_state")[0], nodes.static("power_headroom")[0]
        worth = np.ones(1 + len(POWER_STATES))
        worth[_SAVING], worth[_CAPPED] = self.params.saving, self.params.capped
        remaining = _headroom(nodes) - (request.shape.expected_watts or 0)
        part = np.where(headroom == UNKNOWN, 0.5, np.clip(remaining / np.maximum(headroom, 1), 0.0, 1.0))
        score: Floats = 100.0 * worth[state] * part
        return score


def _powered_off(nodes: Window) -> Bools:
    return np.isin(nodes.static("power_state")[0], _TAKES_NOTHING)


def _known(nodes: Window) -> Bools:
    known: Bools = nodes.static("power_headroom")[0] != UNKNOWN
    return known


def _headroom(nodes: Window) -> Ints:
    remaining: Ints = nodes.static("power_headroom")[0] - nodes.load("power_placed")[0]
    return remaining
