"""Lower a requirement to the largest part that a machine covers.

The result supplements a message such as "your program needs v, these nodes lack it" with the requirement of a program
that would run on these nodes. A required name is kept if the offer has the name and all names that it implies. Any
other required name is replaced by the implied names that the offer has. A profile is replaced by the largest profile
below it that the offer covers. The text is as short as the grammar allows: `rv64gc`, `x86-64-v3+sha_ni`.
Invariant: both the offer and the requirement cover the result.
"""

from __future__ import annotations

from hetsched.contracts.errors import InputError

from .arm import ARM
from .levelled import levelled_isa
from .matching import match
from .requirement import parse
from .riscv_closure import closure
from .riscv_table import G_EXPANSION, PROFILES, canonical_text
from .value import Isa
from .x86 import X86


def covered_part(required: Isa, offered: Isa) -> str | None:
    """Return the largest part of the requirement that the offer covers, or None if it covers no part."""
    if (required.arch, required.xlen) != (offered.arch, offered.xlen):
        return None
    if required.arch == "riscv":
        texts = _riscv(required, offered)
    else:
        texts = [_levelled(required, offered)]
    for text in texts:
        if text and match(parse(text), offered).satisfied:
            return text
    return None


def _levelled(required: Isa, offered: Isa) -> str:
    family = X86 if required.arch == "x86" else ARM
    common = required.needed & offered.extensions
    try:
        return levelled_isa(family, required.input, "pod-label", common, explicit=common).canonical
    except InputError:
        return ""


def _riscv(required: Isa, offered: Isa) -> list[str]:
    lacking = frozenset(match(required, offered).missing)
    kept = {
        name
        for name in required.explicit - {required.base}
        if not lacking & (own := closure(frozenset((name,)), required.xlen)) and own <= offered.extensions
    }
    texts = []
    if required.profile is not None:
        for profile in sorted(PROFILES, key=lambda name: -len(PROFILES[name]["mandatory"])):
            if match(parse(profile), required).satisfied:
                texts.append(canonical_text(profile, kept - parse(profile).extensions))
    implied = (required.needed & offered.extensions) - closure(frozenset(kept), required.xlen) - lacking
    for name in sorted(implied):
        if name not in closure(frozenset(implied - {name}), required.xlen):
            kept.add(name)
    head = f"rv{required.xlen}"
    parts = G_EXPANSION - {"i"}
    if required.base == "i" and parts <= kept:
        texts.append(canonical_text(f"{head}g", kept - parts))
    texts.append(canonical_text(f"{head}{required.base}", kept))
    return texts
