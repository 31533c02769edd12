"""Match a requirement against an offer: coverage, missing names and affinity.

Architecture and width must be equal, so RV32 does not run on RV64 nodes. A program for base e runs on base i, but not
the reverse. The offer's closure must contain the needed names. Versions must be compatible: the major versions are
equal, and the offered minor version is at least the required one. If only one side states a version, its major version
must be that of the table. Affinity is at most 1. For RISC-V it is the number of explicit items of the requirement
divided by that of the offer. These numbers include the base but not zicsr and zifencei; g and profiles count as the
items that they contain. For other architectures, it is the size of the requirement's closure divided by that of the
offer's closure.
Invariant: match is reflexive, and transitive if no profile has optional (soft) names.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

from .riscv_closure import BUNDLES, closure
from .riscv_table import VERSIONS
from .value import Isa, Match

_NOT_COUNTED = frozenset({"zicsr", "zifencei"})


def match(required: Isa, offered: Isa) -> Match:
    """Compare a requirement with what a machine offers."""
    return _match(required, offered)


@lru_cache(maxsize=65536)
def _match(required: Isa, offered: Isa) -> Match:
    if required.arch != offered.arch:
        return Match(satisfied=False, missing=(required.arch,))
    if required.xlen != offered.xlen:
        return Match(satisfied=False, missing=(f"rv{required.xlen}",))
    unreported = tuple(sorted(required.soft - offered.extensions))
    missing = required.needed - offered.extensions
    incompatible = _incompatible(required, offered)
    if required.base == "i" and offered.base == "e":
        incompatible.add("i")
    if missing or incompatible:
        smallest = _smallest(missing, required, offered) if required.arch == "riscv" else missing
        return Match(satisfied=False, missing=tuple(sorted(smallest | incompatible)), unreported=unreported)
    return Match(satisfied=True, affinity=_affinity(required, offered), unreported=unreported)


def _incompatible(required: Isa, offered: Isa) -> set[str]:
    """Return the names whose versions are incompatible."""
    if not required.versions and not offered.versions:
        return set()
    asked = {name: (major, minor) for name, major, minor in required.versions}
    has = {name: (major, minor) for name, major, minor in offered.versions}
    found = set()
    for name in asked.keys() | has.keys():
        if name not in required.needed and name != required.base:
            continue
        if name in asked and name in has:
            compatible = asked[name][0] == has[name][0] and has[name][1] >= asked[name][1]
        else:
            stated = asked.get(name) or has[name]
            compatible = name not in VERSIONS or stated[0] == VERSIONS[name][0]
        if not compatible:
            found.add(name)
    return found


def _smallest(missing: frozenset[str], required: Isa, offered: Isa) -> set[str]:
    """Reduce `missing` to a smallest set that, together with the offer, implies all missing names.

    Candidates are the explicitly required names and the bundles: for a node without c and d the result is `c d`, not
    `zcd`. Of two results of equal size, the one with a required name instead of a bundle is returned.
    """
    xlen = required.xlen
    candidates = {name for name in missing if name in required.explicit or name in BUNDLES}
    kept = set(candidates)
    for name in sorted(
        kept, key=lambda name: (len(closure(frozenset((name,)), xlen)), name in required.explicit, name)
    ):
        if name in closure(offered.extensions | (kept - {name}), xlen):
            kept.discard(name)
    if len(missing & BUNDLES.keys()) > 1:  # with a single bundle no candidates overlap, so `kept` is already smallest
        kept = _fewest(missing, candidates, offered.extensions, xlen, len(kept)) or kept
    for name in sorted(kept - required.explicit):
        for other in sorted((missing & required.explicit) - kept):
            swapped = kept - {name} | {other}
            if missing <= closure(offered.extensions | swapped, xlen):
                kept = swapped
                break
    return kept


def _fewest(
    missing: frozenset[str], candidates: set[str], offered: frozenset[str], xlen: int, bound: int
) -> set[str] | None:
    """Return fewer than `bound` candidates that imply all missing names, or None if this is impossible.

    A candidate that another candidate implies is never needed. A candidate that all other candidates together do not
    imply is always needed. The remaining candidates are few (bundles that share parts), so their combinations are
    tried, smallest first.
    """
    implied = {name: closure(offered | {name}, xlen) for name in candidates}
    widest: list[str] = []
    for name in sorted(candidates, key=lambda name: (-len(implied[name]), name)):
        if not any(name in implied[other] for other in widest):
            widest.append(name)
    needed = {name for name in widest if name not in closure(offered.union(widest) - {name}, xlen)}
    others = sorted(set(widest) - needed)
    for size in range(min(bound - len(needed), len(others) + 1)):
        for chosen in combinations(others, size):
            if missing <= closure(offered | needed | set(chosen), xlen):
                return needed | set(chosen)
    return None


def _affinity(required: Isa, offered: Isa) -> float:
    if required.arch == "riscv":
        asked, has = len(required.explicit - _NOT_COUNTED), len(offered.explicit - _NOT_COUNTED)
    else:
        asked, has = len(required.extensions), len(offered.extensions)
    return round(min(1.0, asked / has), 4)
