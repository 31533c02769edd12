"""Joint requirement of several programs.

Programs of one architecture and width need the union of their requirements: RISC-V names, x86 and Arm levels with
features. An unratified (draft) extension is also marked as a draft in the union.
"""

from __future__ import annotations

from collections.abc import Iterable

from hetsched.contracts.errors import InputError

from .arm import ARM
from .elf import requirement_of_arch
from .levelled import levelled_isa
from .requirement import parse
from .value import Isa
from .x86 import X86


def joint_requirement(requirements: Iterable[str | None]) -> str | None:
    """Return the joint requirement of programs of one architecture, or None if a requirement is unknown.

    Raises: InputError if no machine can satisfy the joint requirement.
    """
    texts = tuple(requirements)
    if not texts or None in texts:
        return None
    needs = [parse(text) for text in dict.fromkeys(texts) if text is not None]
    first = needs[0]
    if any((need.arch, need.xlen) != (first.arch, first.xlen) for need in needs):
        raise InputError("IsaConflict", "programs for different architectures have no common ISA requirement")
    if len(needs) == 1:
        return texts[0]
    if first.arch != "riscv":
        family = X86 if first.arch == "x86" else ARM
        extensions = frozenset().union(*(need.extensions for need in needs))
        return levelled_isa(family, first.input, first.source, extensions, explicit=extensions).canonical
    return requirement_of_arch(_joined(needs))


def _joined(needs: list[Isa]) -> str:
    first = needs[0]
    base = "i" if any(need.base == "i" for need in needs) else "e"
    names = sorted(frozenset().union(*(need.explicit for need in needs)) - {"i", "e"})
    stated = {name: f"{major}p{minor}" for need in needs for name, major, minor in need.versions}
    return "_".join((f"rv{first.xlen}{base}", *(name + stated.get(name, "") for name in names)))
