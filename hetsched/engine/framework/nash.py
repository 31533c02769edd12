"""The balance game: how evenly a node is used, and the effect of one more pod on the product over all nodes.

A node with full CPU and idle network wastes its network capacity. A score over one or two resources cannot detect this;
a score over all four can. Over the resources k (CPU, memory, network, disk) that the node has, C_k > 0:
    u_k = used_k / C_k, clamped to 0-1     used_k is measured if a fresh sample exists, else requested
    mu  = mean of u_k                      B = mean of (u_k - mu)^2, `variance`, or its root, `std`
    S   = 1 - B                            the node's utility; one resource or none -> 1
The nodes are players; the Nash bargaining solution maximises the product of their utilities. A placement changes only
one factor, so the best node is the one with the greatest S_new / S_old. Of nodes with equal gains, the one with the
lower mu after placement wins.
Source: MBCGT (Li et al., Journal of Xidian University 2021 48(6)), equations (2)-(6); (2) and (5) are reconstructed
from its text ("the larger the variance, the smaller the utility").
Example: u = (.50, .25, .10, .15) -> mu .25, B .02375, S .97625.  u = (1, 1, 0, 0) -> B .25, S .75, the minimum.
Invariants: each row's result depends on that row alone, bit for bit (sums follow the order of the resources).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from hetsched.engine.cluster.columns import USAGE_RESOURCES, Bools, Floats, Ints, Rows, Window

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState

    from .request import Request

Dispersion = Literal["variance", "std"]

_QUANTUM = 1e-9
_QUANTA = 1e9  # 1 / _QUANTUM


class FourResources(NamedTuple):
    """The subset of the four resources that the cluster has: positions in `used`, rows of `allocatable`, (k,) each."""

    used: Rows
    allocatable: Rows


CPU_AND_MEMORY = FourResources(np.array([0, 1], np.intp), np.array([0, 1], np.intp))


def resources_of(state: ClusterState) -> FourResources:
    """Return which of the four resources the cluster's columns contain."""
    known = [
        (i, state.resources.index[name]) for i, name in enumerate(USAGE_RESOURCES) if name in state.resources.index
    ]
    return FourResources(np.array([i for i, _ in known], np.intp), np.array([row for _, row in known], np.intp))


def capacity(nodes: Window, resources: FourResources) -> Ints:
    """Return the capacity of each node, shape (k, n); 0 for resources that the node lacks."""
    return nodes.static("allocatable").take(resources.allocatable, axis=0)


def used(nodes: Window, resources: FourResources) -> Ints:
    """Return the usage of each node, shape (k, n): measured, or requested if there is no measurement.

    The expected use of pods deleted since the sample may exceed the sample; the result is clamped at 0.
    """
    in_use: Ints = np.maximum(_rows(nodes.load("used"), resources.used), 0)
    return in_use


def demand(request: Request, nodes: Window, resources: FourResources) -> Ints:
    """Return the pod's contribution to `used`, shape (k, n): its expected use on measured nodes, else its request."""
    compiled = request.compiled
    requests = _requests(request, nodes, resources)
    if compiled.expected_extra is None:
        return np.broadcast_to(requests[:, None], (len(requests), nodes.n))
    extra = compiled.expected_extra[resources.used]
    added: Ints = requests[:, None] + nodes.static("measured")[resources.used] * extra[:, None]
    return added


def _requests(request: Request, nodes: Window, resources: FourResources) -> Ints:
    """Return the pod's requests of these resources, shape (k,)."""
    return _rows(request.compiled.delta[nodes.columns.layout.load["used"]], resources.used)


def _rows(field: Ints, rows: Rows) -> Ints:
    """Return the given rows of a field; if these are all rows, the usual case, the field is not copied."""
    return field if len(rows) == len(field) else field[rows]


def utility(use: Ints, room: Ints, dispersion: Dispersion = "variance") -> tuple[Floats, Floats]:
    """Return the utility S and the mean mu of each node, both (n,), from usage `use` and capacity `room`, (k, n)."""
    has = room > 0
    share: Floats = np.where(has, np.clip(use / np.maximum(room, 1), 0.0, 1.0), 0.0)
    count: Floats = np.maximum(has.sum(axis=0), 1).astype(np.float64)
    mean = _summed(share) / count
    spread = _summed(np.where(has, (share - mean) ** 2, 0.0)) / count
    return 1.0 - (np.sqrt(spread) if dispersion == "std" else spread), mean


def gain(request: Request, nodes: Window, resources: FourResources, dispersion: Dispersion) -> tuple[Floats, Floats]:
    """Return S_new / S_old for placing the pod on each node, and mu after the placement; both have shape (n,)."""
    room = capacity(nodes, resources)
    both: Ints = np.empty((2, *room.shape), np.int64)
    np.maximum(_rows(nodes.load("used"), resources.used), 0, out=both[0])
    compiled = request.compiled
    if compiled.expected_extra is None:
        np.add(both[0], _requests(request, nodes, resources)[:, None], out=both[1])
    else:
        np.add(both[0], demand(request, nodes, resources), out=both[1])
    if dispersion == "std" or not room.all():
        before, _ = utility(both[0], room, dispersion)
        after, mean = utility(both[1], room, dispersion)
        return after / before, mean
    # Compute both utilities in one pass, without the mask: no resource is missing.
    share = both / room
    np.minimum(share, 1.0, out=share)
    means = _summed_up(share)
    means /= len(room)
    share -= means[:, None]
    share *= share
    spread = _summed_up(share)
    spread /= len(room)
    np.subtract(1.0, spread, out=spread)
    gains: Floats = spread[1] / spread[0]
    return gains, means[1]


def ranked(gains: Floats, mean: Floats) -> Floats:
    """Return the gains rounded to nine digits; of equal gains, the one with the lower mean becomes the greatest."""
    return (np.rint(gains * _QUANTA) - 0.25 * mean) * _QUANTUM


def all_equal(gains: Floats) -> bool:
    """Return whether all gains are equal, so that only the means order the nodes."""
    return float(gains.max()) - float(gains.min()) < 0.5 * _QUANTUM


def overloaded(request: Request, nodes: Window, resources: FourResources, free_percent: int = 0) -> Bools:
    """Return a mask (k, n): True where the pod would raise the use of a requested resource above the node's capacity.

    `free_percent` of every capacity must remain free; a resource that a node does not state is not limited.
    Source: MBCGT, constraints (9)-(12).
    """
    added, room = demand(request, nodes, resources), capacity(nodes, resources)
    after = used(nodes, resources) + added
    return (added > 0) & (room > 0) & (after * 100 > room * (100 - free_percent))


def log_product(utilities: Floats) -> float:
    """Return the natural logarithm of the Nash product."""
    return math.fsum(np.log(utilities).tolist())


def _summed_up(blocks: Floats) -> Floats:
    """Sum (2, k, n) over k in the order of `_summed`; NumPy's reduction keeps this order unless n is 1."""
    if blocks.shape[2] > 1:
        reduced: Floats = np.add.reduce(blocks, axis=1)
        return reduced
    total: Floats = blocks[:, 0].copy()
    for position in range(1, blocks.shape[1]):
        total += blocks[:, position]
    return total


def _summed(rows: Floats) -> Floats:
    """Add (k, n) rows one after the other, so that a sum does not depend on the number of columns."""
    total: Floats = np.zeros(rows.shape[1])
    for row in rows:
        total = total + row
    return total
