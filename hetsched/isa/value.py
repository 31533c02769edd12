"""A point of the lattice, and the result of comparing two points.

`extensions` is closed under implication, in lower case, without the RISC-V base letter; for x86 and Arm it contains
Linux flag names. `needed` lists the names that an offer must have to match: all of `extensions`, except the soft names
of a RISC-V profile. `soft` contains these soft names: a missing soft name is reported, but does not prevent a match.
Invariant: `parse(isa.canonical, source=isa.source)` has the same extensions.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Source = Literal["pod-label", "node-label", "cpuinfo", "dt-isa", "dt-isa-extensions", "gcc"]
Arch = Literal["riscv", "x86", "arm"]
Version = tuple[str, int, int]

SOURCES: tuple[Source, ...] = ("pod-label", "node-label", "cpuinfo", "dt-isa", "dt-isa-extensions", "gcc")
STRICT_SOURCES: frozenset[Source] = frozenset({"pod-label", "node-label"})
# Sources of node strings that may follow the RISC-V specification from before 2019, in which I included the extensions
# in `BEFORE_2019_PART_OF_I`; these extensions are added to such strings. Other sources are not amended: the newer
# device-tree list is exact, and a pod's requirement is never extended.
AMENDED_SOURCES: frozenset[Source] = frozenset({"node-label", "cpuinfo", "dt-isa", "gcc"})


class Isa(msgspec.Struct, frozen=True, cache_hash=True):
    """An instruction set, used as the requirement of a program or as the offer of a machine.

    `explicit` contains the stated names, with g and profiles expanded and including the RISC-V base letter. `versions`
    contains the stated versions. `untrusted` contains stated names that belong to a draft or are unreadable; they are
    not part of `extensions`.
    """

    input: str
    source: Source
    arch: Arch
    xlen: int
    base: str
    explicit: frozenset[str]
    extensions: frozenset[str]
    canonical: str
    needed: frozenset[str]
    soft: frozenset[str] = frozenset()
    profile: str | None = None
    versions: tuple[Version, ...] = ()
    untrusted: tuple[str, ...] = ()


class Match(msgspec.Struct, frozen=True):
    """Result of matching a requirement against an offer.

    `missing` is the smallest set of names, sorted, that the offer would need in addition. If the architecture differs,
    it contains the required architecture (`x86`), and if the width differs, `rv32` or `rv64`. If base i is required and
    base e is offered, it contains `i`. `affinity` is 0-1, or None if the offer does not satisfy the requirement.
    `unreported` lists soft names of a profile that the node does not report.
    """

    satisfied: bool
    missing: tuple[str, ...] = ()
    affinity: float | None = None
    unreported: tuple[str, ...] = ()
