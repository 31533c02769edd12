"""What an answer says beyond its verdict, in lines for people: evictions, nearest fits, margins, expected use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hetsched.contracts.decision import Balance, Evicted, ExpectedUse, NearestFit, Placement, Tipping

_SHOWN_NODES = 3


def eviction_lines(evicted: Iterable[Evicted], nominated_node: str | None = None) -> Iterator[str]:
    """Yield a line for each pod that left, or has to leave the node that is kept for another."""
    if nominated_node:
        yield f"node kept for it: {nominated_node}"
    head = "has to leave" if nominated_node else "evicted"
    for pod in evicted:
        against = f", against the disruption budget {pod.pdb}" if pod.pdb else ""
        yield f"{head}: {pod.pod} (priority {pod.priority}) from {pod.node}{against}"


def nearest_lines(fits: Iterable[NearestFit]) -> Iterator[str]:
    """Yield a line for each change of the request that would make it fit."""
    for fit in fits:
        fields = fit.field if fit.also is None else f"{fit.field}, {fit.also.field}"
        more = fit.count - len(fit.nodes[:_SHOWN_NODES])
        nodes = ", ".join(fit.nodes[:_SHOWN_NODES]) + (f" and {more} more" if more > 0 else "")
        yield f"nearest fit: {fit.change}  on {nodes}  ({fields})"


def margin_lines(found: Tipping) -> Iterator[str]:
    """Yield by how much a node won, and the weights at which another would have."""
    if found.runner_up is None or found.margin is None:
        yield f"{found.node} is the only node that fits"
        return
    if found.margin:
        firm = "" if found.points else "; no change of one weight alone would make another node win"
        yield f"{found.node} wins by {found.margin:.2f} over {found.runner_up}{firm}"
    else:
        yield f"{found.node} and {found.runner_up} are equal; the first by name wins"
    for point in found.points:
        yield f"  {point.node} would win with {point.plugin} {point.side} {point.at:g} (it weighs {point.weight:g})"


def pairing_lines(placements: Iterable[Placement]) -> Iterator[str]:
    """Yield who else runs on the cores of pinned CPUs."""
    for placement in placements:
        for pairing in placement.pairings:
            yield f"{placement.pod} on {placement.node}: {pairing}"


def use_text(use: ExpectedUse) -> str:
    """Write an expected use with its basis."""
    return ", ".join(f"{name} {amount}" for name, amount in use.amounts.items()) + f" ({use.basis})"


def expected_use_lines(placements: Iterable[Placement]) -> Iterator[str]:
    """Yield what pods are expected to use really and on what basis, pods with the same expectation in one line."""
    pods: dict[str, list[str]] = {}
    for placement in placements:
        if placement.expected_use is not None:
            pods.setdefault(use_text(placement.expected_use), []).append(placement.pod)
    for text, alike in pods.items():
        who = alike[0] if len(alike) == 1 else f"{alike[0]} and {len(alike) - 1} more"
        yield f"expected use of {who}: {text}"


def stale_lines(balance: Balance) -> Iterator[str]:
    """Yield which nodes' samples are too old to count."""
    stale = balance.stale_samples
    if stale:
        named = ", ".join(stale[:_SHOWN_NODES])
        more = f" and {len(stale) - _SHOWN_NODES} more" if len(stale) > _SHOWN_NODES else ""
        yield f"measured use of {named}{more} is stale: requests stand for it"
