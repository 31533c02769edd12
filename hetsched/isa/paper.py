"""ISAMatch as published: labels consist of letters, which are compared as sets, and affinity is a ratio of counts.

The experiments must reproduce the publication, whose rules differ from the lattice (D needs F, V is independent). In
its Algorithm 1, a pod label with "RV" fits a node whose label starts with RV and whose letters include the pod's
letters. Any other pod label fits a node label that contains it ("ARM" fits "ARM64"). Affinity = number of pod modules /
number of node modules, including I. This module adds two restrictions, which do not change the published results:
widths must be equal, and modules are compared as sets. Before the comparison, letters are converted to upper case,
versions are dropped, G is expanded, and the implied modules are added (D implies F, Q implies D); longer names follow
after `_`.
Source: Jiang et al., Computer Systems & Applications 2022 31(9).
"""

from __future__ import annotations

import re
from itertools import combinations

from hetsched.contracts.message import Message

from .codes import refuse

_LABEL = re.compile(r"RV(32|64)([A-Z0-9_]*)")
_LETTERS = re.compile(r"[A-RT-WY0-9]*")
_NUMBER = re.compile(r"[0-9]+(?:P[0-9]+)?")
_VERSION = re.compile(r"[0-9]+(?:P[0-9]+)?$")
_NEEDS = {"D": "F", "Q": "D"}
_LETTER_ORDER = "IEMAFDQLCBKJTPVH"


def modules(label: str) -> frozenset[str]:
    """Return the modules of a RISC-V label, including implied modules, or an empty set if the label names none."""
    found = _LABEL.fullmatch(label.strip().upper())
    if found is None:
        refuse("IsaUnknownArchitecture", Message("{text} is not a RISC-V label such as RV64IMFDV", text=repr(label)))
    names: set[str] = set()
    for word in found[2].split("_"):
        letters = _LETTERS.match(word)
        assert letters is not None  # the pattern also matches the empty string
        names |= {*_NUMBER.sub("", letters[0]), _VERSION.sub("", word[letters.end() :])}
    names.discard("")
    if "G" in names:
        names = names - {"G"} | set("IMAFD")
    for name in ("Q", "D"):
        if name in names:
            names.add(_NEEDS[name])
    return frozenset(names)


def is_letters(label: str) -> bool:
    """Return whether a label has the form of the publication and names at least one module."""
    return _LABEL.fullmatch(label.strip().upper()) is not None and bool(modules(label))


def letters_subset(pod_label: str, node_label: str) -> bool:
    """Return whether the node's modules include the pod's; false if the node label names no module."""
    return bool(modules(node_label)) and modules(pod_label) <= modules(node_label)


def paper_match(pod_label: str, node_label: str) -> bool:
    """Apply Algorithm 1 to two labels. Raises: InputError if a RISC-V pod label names no modules."""
    pod, node = pod_label.strip().upper(), node_label.strip().upper()
    if "RV" not in pod:
        return bool(pod) and pod in node
    if not modules(pod):
        refuse(
            "IsaMissingBase", Message("{text} contains no module", text=repr(pod_label)), hint="write at least RV64I"
        )
    if _LABEL.fullmatch(node) is None:
        return False
    return pod[:4] == node[:4] and letters_subset(pod, node)


def paper_affinity(pod_label: str, node_label: str) -> float | None:
    """Return the affinity (0-1; 1 for matching labels without modules), or None if the labels do not match."""
    if not paper_match(pod_label, node_label):
        return None
    if "RV" not in pod_label.upper():
        return 1.0
    return len(modules(pod_label)) / len(modules(node_label))


def runnable_isas(label: str) -> tuple[str, ...]:
    """List every label that a machine with this label can run.

    These are the subsets of its letters that contain the base, F if they contain D, and D if they contain Q.
    """
    letters = sorted((name for name in modules(label) if len(name) == 1), key=_LETTER_ORDER.find)
    head, base, optional = label.strip().upper()[:4], letters[0], letters[1:]
    runnable = []
    for count in range(len(optional) + 1):
        for chosen in combinations(optional, count):
            if all(_NEEDS[name] in chosen for name in chosen if name in _NEEDS):
                runnable.append(head + base + "".join(chosen))
    return tuple(runnable)
