"""Instruction set of each CPU in the device tree.

`riscv,isa-base` with `riscv,isa-extensions` is an exact list; `riscv,isa` is the deprecated string. Only extensions
that every enabled CPU has are used.
Source: device-tree binding riscv/extensions.yaml; the tree is /proc/device-tree, or its target.
"""

from __future__ import annotations

from hetsched.agent.tree import Tree
from hetsched.contracts.messages.agent_report import MachineProblem

PLACES = ("proc/device-tree/cpus", "sys/firmware/devicetree/base/cpus")
MAX_CPUS = 1024
_LIMIT_BYTES = 8192


def cpu_folders(tree: Tree) -> list[str]:
    """Return the CPUs of the device tree that are not disabled."""
    for place in PLACES:
        found = [name for name in tree.names(place) if name.startswith("cpu@")]
        if len(found) > MAX_CPUS:
            tree.problems.append(
                MachineProblem("DeviceTreeTooLarge", f"only {MAX_CPUS} of its CPUs are read", f"/{place}")
            )
        folders = [f"{place}/{name}" for name in found[:MAX_CPUS]]
        enabled = [
            folder for folder in folders if strings(tree, f"{folder}/status")[:1] not in (["disabled"], ["fail"])
        ]
        if enabled:
            return enabled
    return []


def stated_list(tree: Tree, folders: list[str]) -> str | None:
    """Return base and extensions that all CPUs state as one ISA string, None if one states none."""
    bases: set[str] = set()
    common: set[str] | None = None
    for folder in folders:
        base, extensions = strings(tree, f"{folder}/riscv,isa-base"), strings(tree, f"{folder}/riscv,isa-extensions")
        if len(base) != 1 or not extensions:
            return None
        bases.add(base[0])
        common = set(extensions) if common is None else common & set(extensions)
    if len(bases) != 1:
        return None
    # The base contains its own letter, and a single-letter extension needs no separator.
    return "_".join((bases.pop(), *sorted((common or set()) - {"i", "e"})))


def stated_strings(tree: Tree, folders: list[str]) -> list[str]:
    """Return the `riscv,isa` of every CPU, an empty list if one states none."""
    found = [strings(tree, f"{folder}/riscv,isa") for folder in folders]
    return [text[0] for text in found] if all(found) else []


def strings(tree: Tree, path: str) -> list[str]:
    """Return a property's strings; they are separated by NUL."""
    data = tree.data(path, _LIMIT_BYTES)
    if not data:
        return []
    return [part.decode("ascii", "replace").strip() for part in data.split(b"\0") if part.strip()]
