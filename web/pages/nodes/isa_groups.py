"""Group instruction-set extensions by purpose.

The first matching pattern selects the group; a name without a match is in *others*. Names are those of
`hetsched.isa`: RISC-V extensions, Linux flag names for x86 and Arm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from django.utils.translation import gettext_lazy as _

_VECTOR, _CRYPTO, _BITS = _("vector"), _("cryptography"), _("bit manipulation")
_FLOAT, _MEMORY, _OTHERS = _("floating point"), _("memory and atomics"), _("others")
_PATTERNS = {
    "riscv": (
        (_("base and compressed"), r"[iemcg]|zc.*|zm.*|zicsr|zifencei|zicntr|zihpm"),
        (_FLOAT, r"[fdq]|z[fdhq].*"),
        (_VECTOR, r"v|zv(?!k).*"),
        (_BITS, r"b|zb.*"),
        (_CRYPTO, r"zk.*|zvk.*"),
        (_MEMORY, r"a|za.*|zi.*|ztso"),
        (_("privileged"), r"s.*|h"),
    ),
    "x86": (
        (_CRYPTO, r"aes|vaes|sha.*|pclmul.*|vpclmul.*|gfni|rdrand|rdseed|sm[34]"),
        ("AVX-512", r"avx512.*|avx10.*"),
        ("AMX", r"amx.*"),
        ("AVX", r"avx.*|fma.*|f16c|xop"),
        ("SSE", r"s?sse.*|pni|mmx.*|3dnow.*"),
        (_BITS, r"bmi.*|popcnt|lzcnt|abm|adx|tbm|movbe"),
    ),
    "arm": (
        ("SVE", r"sve.*|sme.*"),
        (_CRYPTO, r"aes|pmull|sha.*|sm[34]|rng.*"),
        (_FLOAT, r"fp.*|asimd.*|bf16|i8mm|fcma|jscvt|frint|flagm.*"),
        (_MEMORY, r"atomics|.*lrcpc|uscat|dcpop|dcpodp|mops"),
    ),
}  # fmt: skip
_COMPILED = {arch: [(label, re.compile(text)) for label, text in rows] for arch, rows in _PATTERNS.items()}


def grouped(arch: str, extensions: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return (label, sorted names) of each group that has any, in the order of the table."""
    groups: dict[str, list[str]] = {}
    patterns = _COMPILED.get(arch, [])
    order = [str(label) for label, _pattern in patterns] + [str(_OTHERS)]
    for name in sorted(extensions):
        found = next((label for label, pattern in patterns if pattern.fullmatch(name)), _OTHERS)
        groups.setdefault(str(found), []).append(name)
    return [(label, groups[label]) for label in dict.fromkeys(order) if label in groups]
