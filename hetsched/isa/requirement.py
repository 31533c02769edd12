"""Parse an ISA requirement or offer of any architecture.

The first letters select the architecture: `rv`, `x86`/`amd64`, `arm`/`aarch64`. Parsing ignores case and surrounding
spaces. The source decides how strictly a string is parsed and whether a node's string is amended. Labels may contain
the architecture names of the ISAMatch publication, `ARM` and `RISC-V`.
"""

from __future__ import annotations

from functools import lru_cache

from hetsched.contracts.message import Message, joined

from .arm import ARM
from .codes import refuse
from .levelled import parse_levelled
from .riscv import parse_riscv
from .value import SOURCES, STRICT_SOURCES, Isa, Source
from .x86 import X86

MAX_LENGTH = 4096
MAX_LABEL_LENGTH = 63
_KNOWN = "write a RISC-V string or profile (rv64gc, rva22u64), amd64 or x86-64-v1 to v4, arm64 or armv8.2-a"
# Architecture names of the ISAMatch publication, with the ISA that every such machine runs.
_PUBLISHED = {"arm": "arm64", "risc-v": "rv64i"}


def parse(text: str, *, source: Source = "pod-label") -> Isa:
    """Parse a requirement or an offer.

    `pod-label` and `node-label` are parsed strictly, `cpuinfo`, `dt-isa`, `dt-isa-extensions` and `gcc` leniently.
    Raises: InputError with a code in `codes.CODES`.
    """
    return _parse(text, source)


def published_isa(text: str) -> str:
    """Return the ISA for ISAMatch's plain `ARM` and `RISC-V`, or any other text unchanged."""
    return _PUBLISHED.get(text.strip().lower(), text)


@lru_cache(maxsize=8192)
def _parse(text: str, source: Source) -> Isa:
    if source not in SOURCES:
        refuse(
            "IsaUnknownSource",
            Message("{text} is not a source of ISA strings", text=repr(source)),
            hint=Message("known: {text}", text=joined(", ", SOURCES)),
        )
    if len(text) > MAX_LENGTH:
        refuse(
            "IsaTooLong", Message("the ISA string has {n} characters; the maximum is {m}", n=len(text), m=MAX_LENGTH)
        )
    # Lower-casing must not turn non-ASCII letters into ASCII letters (the Kelvin sign would become a k).
    plain = text.strip().encode("ascii", "replace").decode().lower()
    if not plain:
        refuse("IsaEmpty", "the ISA string is empty", hint=_KNOWN)
    if source in STRICT_SOURCES:
        plain = published_isa(plain)
    if plain.startswith("rv"):
        return parse_riscv(text, plain, source)
    if plain.startswith(("x86", "amd64")):
        return parse_levelled(X86, text, plain, source)
    if plain.startswith(("arm", "aarch64")):
        return parse_levelled(ARM, text, plain, source)
    refuse(
        "IsaUnknownArchitecture",
        Message("{text} is not a known instruction set", text=_shown(text)),
        hint=_KNOWN,
    )


def label_value(isa: Isa) -> str | None:
    """Return the canonical text as a Kubernetes label value, or None if it exceeds the length limit."""
    value = isa.canonical.replace("+", "_")
    return value if len(value) <= MAX_LABEL_LENGTH else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
