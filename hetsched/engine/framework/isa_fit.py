"""How a pod's instructions run on a node: natively, by emulation, not at all, or nobody can tell.

Problem: the filter, the affinity and the grant must give one answer, for the lattice and for the publication's letters.
Rule: a native need is compared with what the node runs natively; a need that allows emulation with its emulators (for
`cross-isa` its cross toolchains, for the label QEMU either). `passes` says which comes first:
    native-first  native outranks emulated, and a pod that names no native need may run natively all the same;
    qemu-first    emulation outranks the native need, and without one a pod runs only where it is emulated.
What runs natively on the chosen node is granted as native, whichever pass found the node.
`mode` says how strings are compared: `lattice` knows what an extension implies; `paper` compares the letters of two
RISC-V labels and looks for other labels inside the node's, as published, and asks the lattice about what the
publication has no rule for (profiles, levels, other spellings of an architecture).
A node whose ISA nobody stated is unknown, not "no"; so is what lies beyond a lower bound (`complete` false).
Whatever a pod states, its images have to run the same way (`image_fit`): natively, or by the emulator; beside a cross
toolchain they run natively. A pod that states nothing runs natively wherever its images do.
Source: public contract section 1; ISAMatch (Jiang et al., Computer Systems & Applications 2022 31(9)), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from hetsched.contracts.allocation import IsaGrant
from hetsched.contracts.node_report import IsaReport
from hetsched.contracts.params import Params
from hetsched.contracts.workload import IsaDemand
from hetsched.engine.cluster.columns import Ints
from hetsched.isa import Isa, match
from hetsched.isa.paper import is_letters, modules, paper_affinity

from .image_fit import emulator_covers, image_gap
from .isa_strings import offered_isa, required_isa
from .status import Refusal

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState

_KEPT = 4096
NO, UNKNOWN_ISA, SECOND, FIRST = 0, 1, 2, 3
IS_UNKNOWN = Refusal("IsaUnknown", "the node's instruction set is unknown", unknown=True)

Mode = Literal["lattice", "paper"]
Passes = Literal["native-first", "qemu-first"]


class IsaParams(Params, frozen=True):
    """How instruction sets are compared, and whether native or emulated comes first."""

    mode: Annotated[
        Mode,
        msgspec.Meta(
            title="Comparison",
            description="lattice: knows what extensions imply. paper: compares the letters of RISC-V labels.",
        ),
    ] = "lattice"
    passes: Annotated[
        Passes,
        msgspec.Meta(
            title="First pass",
            description="native-first, or qemu-first: emulation where the pod allows it, native only if no node can.",
        ),
    ] = "native-first"


class Run(NamedTuple):
    """How a demand runs on an offer; the texts are empty and the affinity 0 where it does not."""

    rank: int
    mode: str = ""
    required: str = ""
    offered: str = ""
    affinity: float = 0.0


@lru_cache(maxsize=65536)
def run_on(mode: Mode, passes: Passes, demand: IsaDemand, offer: IsaReport) -> Run:
    """Return how `demand` runs on a node with `offer`."""
    native, emulated = _native(mode, passes, demand, offer), _emulated(mode, demand, offer)
    order = (native, emulated)
    if passes == "qemu-first":
        order = (emulated and _as_it_runs(mode, emulated, demand, offer), native)
    for rank, found in zip((FIRST, SECOND), order, strict=True):
        if found is not None:
            return found._replace(rank=rank)
    return Run(UNKNOWN_ISA if offer.native is None or _could_be_more(passes, demand, offer) else NO)


def ranks(state: ClusterState, mode: Mode, passes: Passes, demand: IsaDemand) -> Ints:
    """Return (K,) the rank of `demand` on each of the state's distinct offers; asked once per inventory."""
    known: Callable[[IsaDemand], Ints] = state.once(
        ("isa-ranks", mode, passes), lambda: lru_cache(_KEPT)(partial(_ranks, mode, passes, tuple(state.offers.values)))
    )
    return known(demand)


def _ranks(mode: Mode, passes: Passes, offers: tuple[IsaReport, ...], demand: IsaDemand) -> Ints:
    return np.array([run_on(mode, passes, demand, offer).rank for offer in offers], np.int64)


def grant_of(run: Run) -> IsaGrant:
    """Return the grant of a demand that runs."""
    if run.mode == "any":
        return IsaGrant("any")
    required = required_isa(run.required).canonical
    return IsaGrant(run.mode, required, run.offered)


def refusal_of(mode: Mode, passes: Passes, demand: IsaDemand, offer: IsaReport) -> Refusal:
    """Say why `demand` does not run on a node with `offer`."""
    gap = _images_gap(demand, offer)
    if gap is not None:
        return gap
    if run_on(mode, passes, demand, offer).rank == UNKNOWN_ISA:
        return IS_UNKNOWN
    needs = _native_needs(passes, demand)
    if not needs:
        asked = next(text for text, _, _ in _emulated_needs(demand, offer) if text)
        message = f"the node emulates no {asked}, and the pod states no native need{_emulators_gap(demand, offer)}"
        return Refusal("IsaNotEmulated", message, missing=(asked,))
    required, native = required_isa(needs[0]), offered_isa(offer.native or "")
    if required.arch != native.arch or required.xlen != native.xlen:
        message = f"the node runs {_machine(native)}, {required.canonical} is needed{_emulators_gap(demand, offer)}"
        return Refusal("IsaArchMismatch", message, missing=(required.arch,))
    missing = match(required, native).missing
    if mode == "paper" and is_letters(needs[0]) and is_letters(offer.native or ""):
        missing = tuple(sorted(name.lower() for name in modules(needs[0]) - modules(offer.native or "")))
    message = f"the node lacks {', '.join(missing)}{_emulators_gap(demand, offer)}"
    return Refusal("IsaMissingExtension", message, missing=missing)


def _images_gap(demand: IsaDemand, offer: IsaReport) -> Refusal | None:
    """Say why the pod's images do not run on a node, natively or by an emulator that the pod allows."""
    gap = None if demand.images is None else image_gap(demand.images, offer)
    if gap is None or demand.images is None:
        return None
    emulators = offer.emulated if demand.emulated or demand.qemu else ()
    return None if any(emulator_covers(demand.images, offered) for offered in emulators) else gap


def _emulators_gap(demand: IsaDemand, offer: IsaReport) -> str:
    """Say what the emulator or toolchain that comes nearest lacks, nothing where none is for that architecture."""
    gaps: list[tuple[int, str]] = []
    for text, offers, _ in _emulated_needs(demand, offer):
        for offered in map(offered_isa, offers if text else ()):
            required = required_isa(text)
            missing = match(required, offered).missing
            if missing and (required.arch, required.xlen) == (offered.arch, offered.xlen):
                gaps.append((len(missing), f"; what it emulates lacks {', '.join(missing)}"))
    return min(gaps, default=(0, ""))[1]


def same_isa(mode: Mode, offered: str) -> Hashable:
    """Return what two offers of one instruction set have in common."""
    if mode == "paper" and is_letters(offered):
        return offered.strip().upper()[:4], modules(offered)
    isa = offered_isa(offered)
    return isa.arch, isa.xlen, isa.base, isa.extensions


def _native(mode: Mode, passes: Passes, demand: IsaDemand, offer: IsaReport) -> Run | None:
    if not _images_run_natively(demand, offer):
        return None
    if not demand.is_stated:
        return Run(NO, "any")
    if offer.native is None:
        return None
    for text in _native_needs(passes, demand):
        affinity = _affinity(mode, text, offer.native)
        if affinity is not None:
            return Run(NO, "native", text, offer.native, affinity)
    return None


def _emulated(mode: Mode, demand: IsaDemand, offer: IsaReport) -> Run | None:
    """Return the closest of the emulators or toolchains that do, the first of equals."""
    found: Run | None = None
    for text, offers, runs_images in _emulated_needs(demand, offer):
        for offered in offers if text else ():
            if not (
                emulator_covers(demand.images, offered)
                if runs_images and demand.images is not None
                else _images_run_natively(demand, offer)
            ):
                continue
            affinity = _affinity(mode, text, offered)
            if affinity is not None and (found is None or affinity > found.affinity):
                found = Run(NO, "emulated", text, offered, affinity)
    return found


def _images_run_natively(demand: IsaDemand, offer: IsaReport) -> bool:
    return demand.images is None or image_gap(demand.images, offer) is None


def _as_it_runs(mode: Mode, emulated: Run, demand: IsaDemand, offer: IsaReport) -> Run:
    """Return the run as native where the node needs no emulator for it."""
    if offer.native is None or not _images_run_natively(demand, offer):
        return emulated
    if _affinity(mode, emulated.required, offer.native) is None:
        return emulated
    return emulated._replace(mode="native", offered=offer.native)


def _affinity(mode: Mode, required: str, offered: str) -> float | None:
    """Return the affinity, 0-1, None where the offer does not cover the requirement."""
    if mode == "paper":
        if is_letters(required) and is_letters(offered):
            return paper_affinity(required, offered)
        if "RV" not in required.upper() and required.strip().upper() in offered.upper():
            return 1.0
    return match(required_isa(required), offered_isa(offered)).affinity


def _could_be_more(passes: Passes, demand: IsaDemand, offer: IsaReport) -> bool:
    """Tell whether the node states a lower bound only and is of an architecture that the demand names."""
    if offer.complete or offer.native is None:
        return False
    native = offered_isa(offer.native)
    needs = [required_isa(text) for text in _native_needs(passes, demand)]
    return any((need.arch, need.xlen) == (native.arch, native.xlen) for need in needs)


def _native_needs(passes: Passes, demand: IsaDemand) -> list[str]:
    if demand.native:
        return [demand.native]
    if passes == "qemu-first":
        return []
    return [text for text in (demand.emulated, demand.cross, demand.qemu) if text]


def _emulated_needs(demand: IsaDemand, offer: IsaReport) -> list[tuple[str, tuple[str, ...], bool]]:
    """Return what may be met by which offers, and whether these run the pod's images too, as toolchains do not."""
    return [
        (demand.emulated, offer.emulated, True),
        (demand.cross, offer.cross, False),
        (demand.qemu, offer.emulated, True),
        (demand.qemu, offer.cross, False),
    ]


def _machine(native: Isa) -> str:
    """Name the kind of machine in a word: rv64, x86, arm."""
    return f"rv{native.xlen}" if native.arch == "riscv" else native.arch
