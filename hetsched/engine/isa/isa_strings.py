"""Cached parsing of the instruction set strings of pods and nodes.

A pod's string is parsed strictly; it was validated on submission. A node's string may come from its kernel and
contain names that only the lenient parser of kernel strings accepts.
"""

from __future__ import annotations

from functools import lru_cache

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_report import IsaReport
from hetsched.isa import Isa, match, parse

_NAMES = {"x86": "amd64", "arm": "arm64"}


@lru_cache(maxsize=65536)
def required_isa(text: str) -> Isa:
    return parse(text, source="pod-label")


@lru_cache(maxsize=65536)
def offered_isa(text: str) -> Isa:
    """Parse a node's string; if the strict parser rejects a name, use the lenient parser of kernel strings."""
    try:
        return parse(text, source="node-label")
    except InputError:
        return parse(text, source="cpuinfo")


def architecture(isa: Isa) -> str:
    """Return the architecture's name in `kubernetes.io/arch`."""
    return _NAMES.get(isa.arch) or f"riscv{isa.xlen}"


@lru_cache(maxsize=65536)
def may_have(offer: IsaReport, required: Isa) -> bool:
    """Return whether a node may have `required` without stating it: its ISA is unknown or a lower bound."""
    if offer.native is None:
        return True
    native = offered_isa(offer.native)
    if offer.complete or (required.arch, required.xlen) != (native.arch, native.xlen):
        return False
    return not missing_features(offer, required)


def missing_features(offer: IsaReport, required: Isa) -> tuple[str, ...]:
    """Return the required features, or else the required levels, that a node with a lower bound is known to lack."""
    features = tuple(name for name in offer.absent if name in required.needed)
    levels = (name for name in offer.absent if _is_level(name) and required_isa(name).extensions <= required.needed)
    return features or tuple(levels)


def _is_level(name: str) -> bool:
    return name.startswith("x86-64-v")


@lru_cache(maxsize=16)
def covering_counts(offers: tuple[IsaReport, ...], nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Return, for each ISA report, the number of nodes that natively run everything that its nodes run, at least 1.

    `nodes` has the number of nodes with each report. An unknown ISA is not rare: its count is that of all nodes.
    """
    native = [None if offer.native is None else offered_isa(offer.native) for offer in offers]
    return tuple(
        max(1, sum(n for other, n in zip(native, nodes, strict=True) if other and match(isa, other).satisfied))
        if isa
        else sum(nodes)
        for isa in native
    )
