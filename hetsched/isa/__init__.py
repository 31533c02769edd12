"""Lives here: the instruction-set lattice: what programs need, what machines offer, whether the one covers the other.

May import: the standard library, msgspec and hetsched.contracts.
Never: I/O beyond its own data tables, the clock, another hetsched package.
"""

from .cpuinfo import CpuReport, detect, read_cpuinfo
from .matching import match
from .paper import paper_match, runnable_isas
from .requirement import label_value, parse
from .value import SOURCES, Isa, Match

__all__ = [
    "SOURCES",
    "CpuReport",
    "Isa",
    "Match",
    "detect",
    "label_value",
    "match",
    "paper_match",
    "parse",
    "read_cpuinfo",
    "runnable_isas",
]
