"""Instruction set strings of pods and nodes, read once.

Rule: a pod's string is read strictly, it was checked when the pod came. A node's may come from a machine and hold names
that only the lenient reading of kernel strings accepts.
"""

from __future__ import annotations

from functools import lru_cache

from hetsched.contracts.errors import InputError
from hetsched.isa import Isa, parse

_NAMES = {"x86": "amd64", "arm": "arm64"}


@lru_cache(maxsize=65536)
def required_isa(text: str) -> Isa:
    return parse(text, source="pod-label")


@lru_cache(maxsize=65536)
def offered_isa(text: str) -> Isa:
    """Read a node's string; adapters have checked it, machine sources may hold names that only they accept."""
    try:
        return parse(text, source="node-label")
    except InputError:
        return parse(text, source="cpuinfo")


def architecture(isa: Isa) -> str:
    """Return the architecture by its name in `kubernetes.io/arch`."""
    return _NAMES.get(isa.arch) or f"riscv{isa.xlen}"
