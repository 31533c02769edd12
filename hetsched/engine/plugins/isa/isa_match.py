"""Run a pod only on nodes that support its instruction set.

Problem: an image for the wrong instruction set, or for a missing extension, is scheduled and fails at start. Rule: a
node fits natively if closure(required) is a subset of closure(offered) in the ISA lattice of `hetsched.isa`. It fits by
emulation if the pod allows emulation and an emulator (or, for `cross-isa`, a cross toolchain) on the node offers the
requirement. The first choice (native, or emulated with `passes: qemu-first`) scores 100. A node with an unknown ISA is
rejected, but does not lead to the verdict *never fits*. The same applies if the node states only a lower bound
(`complete` false) that lacks a required feature. `hetsched.engine.isa.isa_fit` has the full rule, and the comparison of
`mode: paper`. Known platforms of the pod's images also restrict the nodes (`hetsched.engine.isa.image_fit`). If an
image index is unreadable, `unknownImage` decides whether the pod is rejected until the index is readable, or placed by
the other facts with a warning. Nodes share few distinct ISA strings, so the lattice is evaluated once per distinct
offer; for a node the result is looked up.
Source: public contract section 1; ISAMatch (Jiang et al. 2022) for the labels ARCH and QEMU.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import Allocation, IsaGrant
from hetsched.contracts.objects.node_report import IsaReport
from hetsched.contracts.objects.workload import IsaDemand, Shape
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Floats, Ints, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.compiled_terms import SharedReservation
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip
from hetsched.engine.isa.image_fit import UNKNOWN_IMAGE, variant_warnings
from hetsched.engine.isa.isa_fit import FIRST, SECOND, IsaParams, grant_of, ranks, refusal_of, run_on

_PREPARED: StateKey[_OfferRanks] = StateKey("isa-match")

ANY = Allocation(isa=IsaGrant("any"))


class IsaMatchParams(IsaParams, frozen=True):
    """Comparison of instruction sets, and the treatment of images with unknown platforms."""

    unknown_image: Annotated[
        Literal["refuse", "warn"],
        msgspec.Meta(
            title="Unreadable image",
            description="refuse: exclude all nodes until the index of the image is read. warn: ignore the image.",
        ),
    ] = msgspec.field(default="warn", name="unknownImage")


class _OfferRanks(NamedTuple):
    """Rank of the ISA demand on each distinct ISA report of the nodes, and these reports."""

    ranks: Ints
    offers: list[IsaReport]


def _isa_demand(shape: Shape) -> Hashable:
    return shape.isa


@plugin(
    "isa-match",
    summary="Exclude nodes whose instruction set does not cover the request; prefer native to emulated execution.",
    params=IsaMatchParams,
    reads=Reads.STATIC,
    helped_by=frozenset({Event.NODE_ADDED, Event.NODE_LABELS, Event.NODE_ISA, Event.IMAGE_READ}),
)
class IsaMatch:
    params: IsaMatchParams
    compiled_reserve = SharedReservation(_isa_demand, "isa_offer")

    def static_key(self, request: Request) -> Hashable:
        return request.shape.isa

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        if request.shape.isa is None:
            return SKIP
        self._remember(request, state)
        return None

    def filter(self, request: Request, nodes: Window) -> Bools:
        known = request.memo[_PREPARED]
        fits: Bools = (known.ranks >= SECOND)[nodes.static("isa_offer")]
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        demand, params = request.shape.isa, self.params
        assert demand is not None
        known = request.memo[_PREPARED]
        distinct = nodes.static("isa_offer")
        if self._refuses_unknown(demand):
            yield UNKNOWN_IMAGE, np.ones(len(distinct), np.bool_)
            return
        by_refusal: dict[Refusal, list[int]] = {}
        for offer in np.unique(distinct).tolist():
            if known.ranks[offer] < SECOND:
                refusal = refusal_of(params.mode, params.passes, demand, known.offers[offer])
                by_refusal.setdefault(refusal, []).append(offer)
        for refusal, ids in by_refusal.items():
            yield refusal, np.isin(distinct, ids)

    def waits(self, request: Request) -> Message:
        demand = request.shape.isa
        if demand is None:
            return Message("a node that runs the pod's images")
        if self._refuses_unknown(demand):
            return Message("the platforms of the pod's images to become known")
        floors = demand.images.floors if demand.images else None
        if floors is not None and not floors:
            return Message("images that have an architecture in common")
        if not demand.is_stated:
            return Message(
                "a node with architecture {text}, as required by the pod's images",
                text=" or ".join(name for name, _ in floors or ()),
            )
        native, emulated = demand.native or demand.qemu, demand.emulated or demand.cross
        if native and emulated:
            template = "a node that has {isa}, or that has an emulator or a cross toolchain for {other}"
            return Message(template, isa=native, other=emulated)
        if native:
            return Message("a node that has {text}", text=native)
        return Message("a node that emulates {text} or has a cross toolchain for it", text=emulated)

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        demand = request.shape.isa
        if demand is None or not (demand.emulated or demand.cross or demand.qemu):
            return SKIP
        self._remember(request, state)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        known = request.memo[_PREPARED]
        scores: Floats = np.where(known.ranks == FIRST, 100.0, 0.0)[nodes.static("isa_offer")]
        return scores

    def reserve(self, request: Request, row: int, state: ClusterState) -> Allocation | Refusal | None:
        demand, params = request.shape.isa, self.params
        if demand is None:
            return ANY
        offer = state.reports[row].isa
        run = run_on(params.mode, params.passes, demand, offer)
        grant = grant_of(run) if run.rank >= SECOND else IsaGrant("any")
        warnings = () if run.mode == "emulated" or demand.images is None else variant_warnings(demand.images, offer)
        return Allocation(isa=msgspec.structs.replace(grant, warnings=warnings) if warnings else grant)

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Do nothing: the execution mode reserves nothing."""

    def emulated_on(self, request: Request, state: ClusterState) -> Bools:
        demand, params = request.shape.isa, self.params
        if demand is None or not (demand.emulated or demand.cross or demand.qemu):
            return np.zeros(len(state.reports), np.bool_)
        runs = (run_on(params.mode, params.passes, demand, offer) for offer in state.offers.values)
        by_offer = np.array([run.mode == "emulated" for run in runs], np.bool_)
        found: Bools = by_offer[state.all_rows.static("isa_offer")]
        return found

    def _remember(self, request: Request, state: ClusterState) -> None:
        assert request.shape.isa is not None
        by_offer = ranks(state, self.params.mode, self.params.passes, request.shape.isa)
        if self._refuses_unknown(request.shape.isa):
            by_offer = np.zeros_like(by_offer)
        request.memo[_PREPARED] = _OfferRanks(by_offer, state.offers.values)

    def _refuses_unknown(self, demand: IsaDemand) -> bool:
        return self.params.unknown_image == "refuse" and demand.images is not None and demand.images.unknown
