"""Run a pod only where its instructions run.

Problem: an image for the wrong instruction set, or for an extension the core lacks, is scheduled happily and dies.
Rule: a node fits natively when closure(required) is a subset of closure(offered) in the ISA lattice of `hetsched.isa`;
it fits by emulation when the pod allows that and an emulator (or, for `cross-isa`, a cross toolchain) on the node
offers the requirement. Native always outranks emulated. A node whose ISA nobody stated is unknown, not "no": it is
refused, and never makes the pod *never fits*; so is what lies beyond a lower bound (`complete` false).
Nodes share few distinct ISA strings, so the lattice is asked once per distinct offer, and a node's answer is a look-up.
Source: public contract section 1; ISAMatch (Jiang et al. 2022) for the labels ARCH and QEMU.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import lru_cache

import numpy as np

from hetsched.contracts.allocation import Allocation, IsaGrant
from hetsched.contracts.errors import InputError
from hetsched.contracts.node_report import IsaReport
from hetsched.contracts.workload import IsaDemand
from hetsched.engine.columns import Bools, Floats, Ints, Window
from hetsched.engine.points import Reads
from hetsched.engine.registry import plugin
from hetsched.engine.request import Request
from hetsched.engine.state import ClusterState
from hetsched.engine.status import SKIP, Refusal, Skip
from hetsched.isa import Isa, match, parse

NO, UNKNOWN_ISA, EMULATED, NATIVE = 0, 1, 2, 3
IS_UNKNOWN = Refusal("IsaUnknown", "the node's instruction set is unknown", unknown=True)
ANY = Allocation(isa=IsaGrant("any"))


@plugin(
    "isa-match",
    summary="Only nodes whose instruction set covers the pod's need; native before emulated.",
    reads=Reads.STATIC,
)
class IsaMatch:
    def static_key(self, request: Request) -> Hashable:
        return request.shape.isa

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        if request.shape.isa is None:
            return SKIP
        request.memo["isa-match"] = state.offers.values
        return None

    def filter(self, request: Request, nodes: Window) -> Bools:
        fits: Bools = _modes(request, nodes) >= EMULATED
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        demand = request.shape.isa
        assert demand is not None
        offers: list[IsaReport] = request.memo["isa-match"]
        distinct = nodes.static("isa_offer")
        by_refusal: dict[Refusal, list[int]] = {}
        for offer in np.unique(distinct).tolist():
            mode = _mode(demand, offers[offer])
            if mode < EMULATED:
                refusal = IS_UNKNOWN if mode == UNKNOWN_ISA else _lacking(demand, offers[offer])
                by_refusal.setdefault(refusal, []).append(offer)
        for refusal, ids in by_refusal.items():
            yield refusal, np.isin(distinct, ids)

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        demand = request.shape.isa
        if demand is None or not (demand.emulated or demand.cross or demand.qemu):
            return SKIP
        request.memo["isa-match"] = state.offers.values
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        return np.where(_modes(request, nodes) == NATIVE, 100.0, 0.0)

    def reserve(self, request: Request, row: int, state: ClusterState) -> Allocation | Refusal | None:
        demand = request.shape.isa
        if demand is None:
            return ANY
        return Allocation(isa=_grant(demand, state.reports[row].isa))

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """How a pod's instructions run takes nothing from the node."""


def _modes(request: Request, nodes: Window) -> Ints:
    """Return (n,) how the demand would run on each node."""
    demand = request.shape.isa
    assert demand is not None
    table = np.array([_mode(demand, offer) for offer in request.memo["isa-match"]], np.int64)
    modes: Ints = table[nodes.static("isa_offer")]
    return modes


@lru_cache(maxsize=65536)
def _mode(demand: IsaDemand, offer: IsaReport) -> int:
    if offer.native is not None:
        native = _offered(offer.native)
        if any(match(_required(text), native).satisfied for text in _native_needs(demand)):
            return NATIVE
    if any(_covered(required, offers) for required, offers in _emulated_needs(demand, offer)):
        return EMULATED
    return UNKNOWN_ISA if offer.native is None or _could_be_more(demand, offer) else NO


def _could_be_more(demand: IsaDemand, offer: IsaReport) -> bool:
    """Tell whether the node states a lower bound only and is of an architecture that the demand names."""
    if offer.complete or offer.native is None:
        return False
    native = _offered(offer.native)
    needs = [_required(text) for text in _native_needs(demand)]
    return any((need.arch, need.xlen) == (native.arch, native.xlen) for need in needs)


def _native_needs(demand: IsaDemand) -> list[str]:
    return [demand.native] if demand.native else [t for t in (demand.emulated, demand.cross, demand.qemu) if t]


def _emulated_needs(demand: IsaDemand, offer: IsaReport) -> list[tuple[str, tuple[str, ...]]]:
    return [
        (demand.emulated, offer.emulated),
        (demand.cross, offer.cross),
        (demand.qemu, offer.emulated + offer.cross),
    ]


def _covered(required: str, offers: tuple[str, ...]) -> bool:
    return bool(required) and any(match(_required(required), _offered(offer)).satisfied for offer in offers)


def _grant(demand: IsaDemand, offer: IsaReport) -> IsaGrant:
    if _mode(demand, offer) == NATIVE:
        native = _offered(offer.native or "")
        required = next(text for text in _native_needs(demand) if match(_required(text), native).satisfied)
        return IsaGrant("native", _required(required).canonical, offer.native)
    for required, offers in _emulated_needs(demand, offer):
        for offered in offers:
            if required and match(_required(required), _offered(offered)).satisfied:
                return IsaGrant("emulated", _required(required).canonical, offered)
    return IsaGrant("any")


def _lacking(demand: IsaDemand, offer: IsaReport) -> Refusal:
    required, native = _required(_native_needs(demand)[0]), _offered(offer.native or "")
    if required.arch != native.arch or required.xlen != native.xlen:
        return Refusal(
            "IsaArchMismatch",
            f"the node runs {_machine(native)}, {required.canonical} is needed",
            missing=(required.arch,),
        )
    missing = match(required, native).missing
    return Refusal("IsaMissingExtension", f"the node lacks {', '.join(missing)}", missing=missing)


def _machine(native: Isa) -> str:
    """Name the kind of machine in a word: rv64, x86, arm."""
    return f"rv{native.xlen}" if native.arch == "riscv" else native.arch


@lru_cache(maxsize=65536)
def _required(text: str) -> Isa:
    return parse(text, source="pod-label")


@lru_cache(maxsize=65536)
def _offered(text: str) -> Isa:
    """Read a node's string; adapters have checked it, machine sources may hold names that only they accept."""
    try:
        return parse(text, source="node-label")
    except InputError:
        return parse(text, source="cpuinfo")
