"""How a pod's instructions run on a node: natively, emulated, not at all, or unknown.

The ISA filter, the ISA scores and the ISA grant use this module, in both modes (lattice and paper).

A native requirement is compared with the node's native ISA. A requirement that allows emulation is compared with the
node's emulators (`cross-isa`: with its cross toolchains; label QEMU: with both). `passes` sets the order:
    native-first  native outranks emulated, and a pod without a native requirement may still run natively;
    qemu-first    emulation outranks native, and a pod without a native requirement runs only where it is emulated.
Under `qemu-first`, a pod for which an emulator was found is granted native execution if the node can natively run the
same requirement.

`mode` sets how strings are compared: `lattice` uses the implications of extensions; `paper` compares, as published, the
letters of two RISC-V labels, and searches the node's label for any other label as a substring. It compares strings for
which the publication has no rule (profiles, levels, other spellings of an architecture) by the lattice.

The result for a node without a stated ISA is unknown, not rejected. A feature beyond a lower bound (`complete` false)
is also unknown, unless the source of the report rules the feature out (`absent`). The pod's images must run in the same
way as its stated requirement (`image_fit`): natively, or by the emulator; with a cross toolchain they run natively. A
pod without a requirement runs natively on every node on which its images run natively.

Source: public contract section 1; ISAMatch (Jiang et al., Computer Systems & Applications 2022 31(9)), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.allocation import IsaGrant
from hetsched.contracts.objects.node_report import IsaReport
from hetsched.contracts.objects.workload import IsaDemand
from hetsched.contracts.params import Params
from hetsched.engine.cluster.columns import Ints
from hetsched.engine.framework.status import Refusal
from hetsched.isa import Isa, match
from hetsched.isa.paper import is_letters, modules, paper_affinity

from .image_fit import emulator_covers, image_gap
from .isa_strings import may_have, missing_features, offered_isa, required_isa

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState

_KEPT = 4096
NO, UNKNOWN_ISA, SECOND, FIRST = 0, 1, 2, 3
IS_UNKNOWN = Refusal("IsaUnknown", Message("the node's instruction set is unknown"), unknown=True)

Mode = Literal["lattice", "paper"]
Passes = Literal["native-first", "qemu-first"]


class IsaParams(Params, frozen=True):
    """Comparison of instruction sets, and the order of native and emulated execution."""

    mode: Annotated[
        Mode,
        msgspec.Meta(
            title="Comparison",
            description="lattice: includes implied extensions. paper: compares the letters of RISC-V labels.",
        ),
    ] = "lattice"
    passes: Annotated[
        Passes,
        msgspec.Meta(
            title="First pass",
            description=(
                "native-first: prefer native to emulated execution. "
                "qemu-first: prefer emulated execution if the pod allows emulation."
            ),
        ),
    ] = "native-first"


class Run(NamedTuple):
    """How a pod's ISA demand runs on a node; if it cannot run, the texts are empty and the affinity is 0."""

    rank: int
    mode: str = ""
    required: str = ""
    offered: str = ""
    affinity: float = 0.0


@lru_cache(maxsize=65536)
def run_on(mode: Mode, passes: Passes, demand: IsaDemand, offer: IsaReport) -> Run:
    """Return how `demand` runs on a node with the ISA report `offer`."""
    native, emulated = _native(mode, passes, demand, offer), _emulated(mode, demand, offer)
    order = (native, emulated)
    if passes == "qemu-first":
        order = (emulated and _natively_if_possible(mode, emulated, demand, offer), native)
    for rank, found in zip((FIRST, SECOND), order, strict=True):
        if found is not None:
            return found._replace(rank=rank)
    return Run(UNKNOWN_ISA if offer.native is None or _could_be_more(passes, demand, offer) else NO)


def ranks(state: ClusterState, mode: Mode, passes: Passes, demand: IsaDemand) -> Ints:
    """Return the rank of `demand` on each of the state's K distinct ISA reports; computed once per inventory."""
    known: Callable[[IsaDemand], Ints] = state.once(
        ("isa-ranks", mode, passes), lambda: lru_cache(_KEPT)(partial(_ranks, mode, passes, tuple(state.offers.values)))
    )
    return known(demand)


def _ranks(mode: Mode, passes: Passes, offers: tuple[IsaReport, ...], demand: IsaDemand) -> Ints:
    return np.array([run_on(mode, passes, demand, offer).rank for offer in offers], np.int64)


def grant_of(run: Run) -> IsaGrant:
    """Convert a successful run to the ISA grant of the pod."""
    if run.mode == "any":
        return IsaGrant("any")
    required = required_isa(run.required).canonical
    return IsaGrant(run.mode, required, run.offered)


def refusal_of(mode: Mode, passes: Passes, demand: IsaDemand, offer: IsaReport) -> Refusal:
    """Return the reason why a node with the ISA report `offer` cannot run `demand`."""
    gap = _images_gap(demand, offer)
    if gap is not None:
        return gap
    if run_on(mode, passes, demand, offer).rank == UNKNOWN_ISA:
        return IS_UNKNOWN
    needs = _native_needs(passes, demand)
    if not needs:
        asked = next(text for text, _, _ in _emulated_needs(demand, offer) if text)
        message = Message("the node does not emulate {isa}, and the pod requests no native instruction set", isa=asked)
        message = joined("; ", [message, *_emulators_gap(demand, offer)])
        return Refusal("IsaNotEmulated", message, missing=(asked,))
    required, native = required_isa(needs[0]), offered_isa(offer.native or "")
    if required.arch != native.arch or required.xlen != native.xlen:
        message = Message(
            "the node runs {isa}, but the pod requires {need}", isa=_machine(native), need=required.canonical
        )
        message = joined("; ", [message, *_emulators_gap(demand, offer)])
        return Refusal("IsaArchMismatch", message, missing=(required.arch,))
    missing = missing_features(offer, required) or match(required, native).missing
    if mode == "paper" and is_letters(needs[0]) and is_letters(offer.native or ""):
        missing = tuple(sorted(name.lower() for name in modules(needs[0]) - modules(offer.native or "")))
    message = Message("the node lacks {names}", names=joined(", ", missing))
    message = joined("; ", [message, *_emulators_gap(demand, offer)])
    return Refusal("IsaMissingExtension", message, missing=missing)


def _images_gap(demand: IsaDemand, offer: IsaReport) -> Refusal | None:
    """Return why the pod's images run neither natively on a node nor by an emulator that the pod allows, or None."""
    gap = None if demand.images is None else image_gap(demand.images, offer)
    if gap is None or demand.images is None:
        return None
    emulators = offer.emulated if demand.emulated or demand.qemu else ()
    return None if any(emulator_covers(demand.images, offered) for offered in emulators) else gap


def _emulators_gap(demand: IsaDemand, offer: IsaReport) -> tuple[Message, ...]:
    """Return what the nearest emulator or toolchain of the required architecture lacks, else nothing."""
    gaps: list[tuple[int, tuple[str, ...]]] = []
    for text, offers, _ in _emulated_needs(demand, offer):
        for offered in map(offered_isa, offers if text else ()):
            required = required_isa(text)
            missing = match(required, offered).missing
            if missing and (required.arch, required.xlen) == (offered.arch, offered.xlen):
                gaps.append((len(missing), missing))
    if not gaps:
        return ()
    return (Message("the node's emulated instruction sets lack {names}", names=joined(", ", min(gaps)[1])),)


def same_isa(mode: Mode, offered: str) -> Hashable:
    """Return a key that is equal for two strings that describe the same instruction set."""
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
    """Return the run with the best matching emulator or toolchain (in a tie, the first), or None if none matches."""
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


def _natively_if_possible(mode: Mode, emulated: Run, demand: IsaDemand, offer: IsaReport) -> Run:
    """Convert an emulated run to a native one if the node can run the demand without an emulator."""
    if offer.native is None or not _images_run_natively(demand, offer):
        return emulated
    if _affinity(mode, emulated.required, offer.native) is None:
        return emulated
    return emulated._replace(mode="native", offered=offer.native)


def _affinity(mode: Mode, required: str, offered: str) -> float | None:
    """Return how closely an offered ISA matches a required one, 0-1, or None if it does not cover the requirement."""
    if mode == "paper":
        if is_letters(required) and is_letters(offered):
            return paper_affinity(required, offered)
        if _is_label(required) and required.strip().upper() in offered.partition("+")[0].upper():
            return 1.0
    return match(required_isa(required), offered_isa(offered)).affinity


def _is_label(required: str) -> bool:
    """Return whether a requirement has the form of the publication's labels without features: ARM64, X86."""
    return not {"+", "_"} & set(required) and "RV" not in required.upper()


def _could_be_more(passes: Passes, demand: IsaDemand, offer: IsaReport) -> bool:
    """Return whether the node states only a lower bound and may have the required features beyond it."""
    if offer.complete or offer.native is None:
        return False
    return any(may_have(offer, required_isa(text)) for text in _native_needs(passes, demand))


def _native_needs(passes: Passes, demand: IsaDemand) -> list[str]:
    if demand.native:
        return [demand.native]
    if passes == "qemu-first":
        return []
    return [text for text in (demand.emulated, demand.cross, demand.qemu) if text]


def _emulated_needs(demand: IsaDemand, offer: IsaReport) -> list[tuple[str, tuple[str, ...], bool]]:
    """Return the requirements that allow emulation, each with the node's ISAs for it and whether these run images.

    Emulators run the pod's images, cross toolchains do not. A requirement that the pod does not state is empty.
    """
    return [
        (demand.emulated, offer.emulated, True),
        (demand.cross, offer.cross, False),
        (demand.qemu, offer.emulated, True),
        (demand.qemu, offer.cross, False),
    ]


def _machine(native: Isa) -> str:
    """Return the short name of a machine: rv64, x86, arm."""
    return f"rv{native.xlen}" if native.arch == "riscv" else native.arch
