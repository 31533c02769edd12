"""Instruction-set lattice: requirements of programs, offers of machines, and whether an offer covers a requirement.

May import: the standard library, msgspec and hetsched.contracts.
Never: I/O except reading its own data tables, the clock, any other hetsched package.
"""

from .cpuinfo import CpuReport, detect, read_cpuinfo
from .isa_document import isa_document, lattice
from .matching import match
from .paper import paper_match, runnable_isas
from .requirement import label_value, parse, published_isa
from .value import SOURCES, Isa, Match

__all__ = [
    "SOURCES",
    "CpuReport",
    "Isa",
    "Match",
    "detect",
    "isa_document",
    "label_value",
    "lattice",
    "match",
    "paper_match",
    "parse",
    "published_isa",
    "read_cpuinfo",
    "runnable_isas",
]
