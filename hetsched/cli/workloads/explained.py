"""Text lines for the details of a result: evictions, nearest fits, margins, expected usage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hetsched.contracts.api.decision import (
    Balance,
    Displaced,
    Evicted,
    ExpectedUse,
    NearestFit,
    Placement,
    Tipping,
)

_SHOWN_NODES = 3


def eviction_lines(evicted: Iterable[Evicted], nominated_node: str | None = None) -> Iterator[str]:
    """Yield a line for each pod to evict, or to preempt on the nominated node."""
    if nominated_node:
        yield f"nominated node: {nominated_node}"
    head = "to be preempted" if nominated_node else "evicted"
    for pod in evicted:
        against = f", violates disruption budget {pod.pdb}" if pod.pdb else ""
        yield f"{head}: {pod.pod} (priority {pod.priority}) from {pod.node}{against}"


def displaced_lines(displaced: Iterable[Displaced]) -> Iterator[str]:
    """Yield a line for each pod of a drained node; pods that do not fit on another node come first."""
    for pod in sorted(displaced, key=lambda item: item.to is not None):
        where = f"to {pod.to}" if pod.to is not None else f"to no node ({pod.verdict.value})"
        yield f"displaced: {pod.pod} from {pod.from_} {where}"


def nearest_lines(fits: Iterable[NearestFit]) -> Iterator[str]:
    """Yield a line for each change to the request that would make the pod fit."""
    for fit in fits:
        fields = fit.field if fit.also is None else f"{fit.field}, {fit.also.field}"
        more = fit.count - len(fit.nodes[:_SHOWN_NODES])
        nodes = ", ".join(fit.nodes[:_SHOWN_NODES]) + (f" and {more} more" if more > 0 else "")
        yield f"nearest fit: {fit.change}  on {nodes}  ({fields})"


def margin_lines(found: Tipping) -> Iterator[str]:
    """Yield the margin of the best node, and the weights at which another node would be selected."""
    if found.runner_up is None or found.margin is None:
        yield f"{found.node} is the only node that fits"
        return
    if found.margin:
        firm = "" if found.points else "; no change of a single weight makes another node win"
        yield f"{found.node} wins by {found.margin:.2f} over {found.runner_up}{firm}"
    else:
        yield f"{found.node} and {found.runner_up} have the same score; the lower name wins"
    for point in found.points:
        yield f"  {point.node} would win with {point.plugin} {point.side} {point.at:g} (weight now {point.weight:g})"


def pairing_lines(placements: Iterable[Placement]) -> Iterator[str]:
    """Yield the pods that share cores with pinned CPUs."""
    for placement in placements:
        for pairing in placement.pairings:
            yield f"{placement.pod} on {placement.node}: {pairing}"


def alignment_lines(placements: Iterable[Placement]) -> Iterator[str]:
    """Yield whether the devices of each claim are in the NUMA zones of the pod's CPUs."""
    for placement in placements:
        for alignment in placement.alignments:
            yield f"{placement.pod} on {placement.node}: {alignment}"


def image_lines(placements: Iterable[Placement]) -> Iterator[str]:
    """Yield the image warnings of each placement."""
    for placement in placements:
        for warning in placement.isa.warnings or ():
            yield f"warning: {placement.pod} on {placement.node}: {warning}"


def use_text(use: ExpectedUse) -> str:
    """Format the expected usage and its basis."""
    return ", ".join(f"{name} {amount}" for name, amount in use.amounts.items()) + f" ({use.basis})"


def expected_use_lines(placements: Iterable[Placement]) -> Iterator[str]:
    """Yield the expected usage and its basis, with one line for all pods with the same expected usage."""
    pods: dict[str, list[str]] = {}
    for placement in placements:
        if placement.expected_use is not None:
            pods.setdefault(use_text(placement.expected_use), []).append(placement.pod)
    for text, alike in pods.items():
        who = alike[0] if len(alike) == 1 else f"{alike[0]} and {len(alike) - 1} more"
        yield f"expected use of {who}: {text}"


def stale_lines(balance: Balance) -> Iterator[str]:
    """Yield lines about nodes with stale usage samples."""
    stale = balance.stale_samples
    if stale:
        named = ", ".join(stale[:_SHOWN_NODES])
        more = f" and {len(stale) - _SHOWN_NODES} more" if len(stale) > _SHOWN_NODES else ""
        yield f"measured use of {named}{more} is stale: requests are used instead"
