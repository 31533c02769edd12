"""Instruction sets of a node from its labels and annotations.

The native ISA is read from the first source that is present: annotation or label `hetsched.io/isa`, label `ARCH`,
feature labels of Node Feature Discovery (NFD), `kubernetes.io/arch`. The feature labels and the architecture label are
lower bounds (`complete` is false). An architecture label states only the base that every node with that label has by
definition (`amd64`, `arm64`, `rv64i`). The x86 feature labels lack the features in NFD's deny list; NFD has no such
list for Arm. Whether a node satisfies a demand beyond its lower bound is unknown, so the pod is refused *not now* and
the demand is never reported as impossible. If the label of a feature that NFD reports by default is absent, the node
lacks the feature. A node also lacks every level above its highest level label. If `hetsched.io/isa-bound` marks the
values that discovery wrote as a lower bound, these values are a lower bound, too, and label `ARCH` is skipped in favour
of the source that it was derived from.
Source: NFD docs/usage/features.
"""

from __future__ import annotations

import re
from functools import lru_cache

from hetsched import isa
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_report import IsaReport

from . import keys
from .demands import ARCH_BASE
from .node_labels import is_short_for

NFD_PREFIX = "feature.node.kubernetes.io/cpu-cpuid."
_NFD_LEVEL = re.compile(r"X86_64_V([1-4])")
# NFD names of flags that differ from the Linux name; all other NFD names are the Linux name in capitals.
_NFD_X86 = {
    "CMPXCHG8": "cx8", "FMA3": "fma", "LAHF": "lahf_lm", "LZCNT": "abm", "OSXSAVE": "xsave", "SSE3": "pni",
    "SSE4": "sse4_1", "SSE42": "sse4_2", "X87": "fpu",
}  # fmt: skip
# ISA extensions that NFD has reported since it adopted cpuid v2 (2020), except those in its default deny list. Newer
# extensions, and members of the x86-64 levels such as MOVBE, are omitted because older NFD releases do not report them.
_NFD_NAMES = frozenset({
    "ADX", "AESNI", "AMXBF16", "AMXINT8", "AMXTILE", "AVX", "AVX2", "AVX512BF16", "AVX512BITALG", "AVX512BW",
    "AVX512CD", "AVX512DQ", "AVX512F", "AVX512IFMA", "AVX512VBMI", "AVX512VBMI2", "AVX512VL", "AVX512VNNI",
    "AVX512VPOPCNTDQ", "FMA3", "FMA4", "GFNI", "SHA", "SSE4A", "TBM", "VAES", "VPCLMULQDQ", "XOP",
})  # fmt: skip
_X86_LEVEL = re.compile(r"x86-64-v[2-4]")
_TOP_LEVEL = 4
_MOST_ABSENT = 100


def isa_report(labels: dict[str, str], annotations: dict[str, str], problems: list[str]) -> IsaReport:
    """Read a node's instruction sets from its labels and annotations."""
    native, source, complete = _native(labels, annotations, problems)
    emulated = _several(annotations.get(keys.EMULATED_ISA) or labels.get(keys.EMULATED_ISA), problems)
    cross = _several(annotations.get(keys.CROSS_ISA) or labels.get(keys.CROSS_ISA), problems)
    either = _several(labels.get(keys.QEMU), problems)
    if is_short_for(labels.get(keys.QEMU, ""), emulated + cross):
        either = ()  # the annotations state the same ISAs, separated into emulated and cross-compiled ones
    return IsaReport(
        native=native,
        emulated=tuple(dict.fromkeys(emulated + either)),
        cross=tuple(dict.fromkeys(cross + either)),
        source=source if native is not None else "",
        complete=complete,
        arch=labels.get(keys.KUBERNETES_ARCH, "") if native is None else "",
        absent=() if complete or native is None else _absent(labels, annotations),
    )


def _absent(labels: dict[str, str], annotations: dict[str, str]) -> tuple[str, ...]:
    """Return the features that a node whose ISA is only a lower bound certainly lacks."""
    if keys.ISA_ABSENT in annotations:
        return absent_names(annotations[keys.ISA_ABSENT])
    words = _nfd_words(labels)
    if labels.get(keys.KUBERNETES_ARCH) != "amd64" or not words:
        return ()
    return _absent_nfd_features(frozenset(words))


def absent_names(text: str) -> tuple[str, ...]:
    """Parse the annotation `hetsched.io/isa-absent`; unknown features and levels are skipped."""
    names = text.split(",")[:_MOST_ABSENT]
    return tuple(name for name in names if _X86_LEVEL.fullmatch(name) or _is_feature(f"x86-64-v1+{name}"))


@lru_cache(maxsize=4096)
def _absent_nfd_features(words: frozenset[str]) -> tuple[str, ...]:
    levels = [int(match[1]) for match in map(_NFD_LEVEL.fullmatch, words) if match]
    there = isa.parse(f"x86-64-v{max(levels, default=1)}").extensions
    named = (_NFD_X86.get(word, word.lower()) for word in _NFD_NAMES - {word.upper() for word in words})
    found = {next(iter(isa.parse(f"x86-64-v1+{name}", source="node-label").explicit)) for name in named} - there
    above = [f"x86-64-v{max(levels) + 1}"] if levels and max(levels) < _TOP_LEVEL else []
    return (*above, *sorted(found))


def _native(labels: dict[str, str], annotations: dict[str, str], problems: list[str]) -> tuple[str | None, str, bool]:
    exact = annotations.get(keys.ISA_BOUND) != keys.LOWER
    for kind, texts, key in (
        ("annotation", annotations, keys.ISA),
        ("label", labels, keys.ISA),
        ("label", labels, keys.ARCH),
    ):
        if key in texts and (exact or key != keys.ARCH):
            offer = isa.published_isa(texts[key])
            return valid_isa(offer.strip(), problems), f"{kind} {key}", exact and offer == texts[key]
    arch = labels.get(keys.KUBERNETES_ARCH, "")
    base = ARCH_BASE.get(arch)
    words = _nfd_words(labels)
    if words and arch in ("amd64", "arm64"):
        offered = _from_features(arch, words)
        if offered != base:
            return offered, NFD_PREFIX.rstrip("."), arch == "arm64"
    return base, keys.KUBERNETES_ARCH, base is None


def _nfd_words(labels: dict[str, str]) -> list[str]:
    return [
        key.removeprefix(NFD_PREFIX) for key, value in labels.items() if key.startswith(NFD_PREFIX) and value == "true"
    ]


def _from_features(arch: str, words: list[str]) -> str:
    """Return the requirement string for a set of feature labels; features that hetsched does not know are skipped."""
    level = ARCH_BASE[arch]
    if arch == "amd64":
        found = [int(match[1]) for match in map(_NFD_LEVEL.fullmatch, words) if match]
        level = f"x86-64-v{max(found)}" if found else level
        words = [_NFD_X86.get(word, word.lower()) for word in words if not _NFD_LEVEL.fullmatch(word)]
    known = sorted(word.lower() for word in words if _is_feature(f"{level}+{word.lower()}"))
    return "+".join((level, *known))


@lru_cache(maxsize=4096)
def _is_feature(text: str) -> bool:
    try:
        isa.parse(text, source="node-label")
    except InputError:
        return False
    return True


def _several(text: str | None, problems: list[str]) -> tuple[str, ...]:
    """Read several instruction sets, separated by commas or white space."""
    parts = re.split(r"[,\s]+", text.strip()) if text and text.strip() else []
    offers = (valid_isa(isa.published_isa(part), problems) for part in parts)
    return tuple(offer for offer in offers if offer is not None)


def valid_isa(text: str, problems: list[str]) -> str | None:
    """Return the text if it is a valid ISA; otherwise return None and add the reason to `problems`."""
    try:
        isa.parse(text, source="node-label")
    except InputError as error:
        problems.append(f"{error.code}: {text[:80]!r}: {error.message}")
        return None
    return text
