"""Targets of the machine's compilers: of gcc by `gcc -v`, as in the ISAMatch publication, and of cross toolchains.

A distribution's compiler shows the target of the distribution's programs, which is only a lower bound of the CPU's
instruction set. The target is `--with-arch` of `gcc -v`, or else the default (riscv64: rv64gc; x86-64: level 1;
aarch64: armv8.0-a). A compiler is executed only on this machine and only if no user except root could have installed
it; otherwise only the target in its name is known.
Source: ISAMatch (gcc -v; cross toolchain under /opt/RISCV/bin); GCC "Installing GCC: Configuration".
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import NamedTuple

from hetsched.agent.programs import is_root_owned, run
from hetsched.agent.tree import Tree
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_report import MachineProblem
from hetsched.isa import Isa, parse

NATIVE = ("/usr/bin/gcc", "/usr/local/bin/gcc", "/usr/bin/cc")
CROSS_FOLDER = "opt/RISCV/bin"
MAX_TOOLCHAINS = 32
_DEFAULTS = {
    "riscv64": "rv64gc", "riscv32": "rv32gc", "x86_64": "x86-64-v1", "aarch64": "armv8.0-a",
}  # fmt: skip
_TARGET = re.compile(r"^Target: *(\S+)", re.MULTILINE)
_ARCH = re.compile(r"--with-arch(?:[-_]?64)?=([A-Za-z0-9_.+-]+)")
_NAME = re.compile(r"([a-z0-9_]+)(-[a-z0-9_]+)*-gcc(-[0-9.]+)?")


class Compiler(NamedTuple):
    """Compiler of the machine; `isa` is its target (None if the ISA lattice lacks it), `stated` its `--with-arch`."""

    path: str
    target: str
    isa: Isa | None
    stated: str | None = None


def read_compiler(text: str, path: str = "gcc") -> Compiler | None:
    """Parse the output of `gcc -v`."""
    target = _TARGET.search(text)
    if target is None:
        return None
    machine = target[1].partition("-")[0]
    stated = _ARCH.search(text)
    written = stated[1] if stated else None
    isa = _parsed(written) if written else None
    return Compiler(path, target[1], isa or _parsed(_DEFAULTS.get(machine)), written)


def native_compiler(tree: Tree) -> Compiler | None:
    """Return the compiler of this machine, or None if there is no compiler or `tree` is not this machine."""
    if not tree.is_this_machine:
        return None
    for path in NATIVE:
        if is_root_owned(path) and (found := _ask(path)):
            return found
    return None


def cross_isas(tree: Tree) -> tuple[str, ...]:
    """Return the targets of the toolchains in /opt/RISCV/bin, in canonical form."""
    names = [name for name in tree.names(CROSS_FOLDER) if _NAME.fullmatch(name)]
    if len(names) > MAX_TOOLCHAINS:
        _problem(tree, "TooManyToolchains", f"only {MAX_TOOLCHAINS} compilers of this folder are read", CROSS_FOLDER)
    found = set()
    for name in names[:MAX_TOOLCHAINS]:
        path = f"/{CROSS_FOLDER}/{name}"
        asked = _ask(path) if tree.is_this_machine and is_root_owned(path) else None
        if asked is None:
            _problem(tree, "ToolchainNotAsked", "the target is derived from the compiler's name only", path)
        isa = asked.isa if asked else _parsed(_DEFAULTS.get(name.partition("-")[0]))
        if isa is not None:
            found.add(isa.canonical)
    return tuple(sorted(found))


def _ask(path: str) -> Compiler | None:
    entry = os.stat(path)
    return _probe_version(path, entry.st_ino, entry.st_mtime_ns)


@lru_cache(maxsize=64)
def _probe_version(path: str, _inode: int, _changed: int) -> Compiler | None:
    """Run a compiler with `-v` and parse its output; the result is cached until the compiler's file changes."""
    completed = run([path, "-v"])
    return read_compiler(completed.output, path) if completed and completed.status == 0 else None


def _parsed(text: str | None) -> Isa | None:
    if not text:
        return None
    # The feature suffixes of an Arm target (`+crypto`) are not spelled as in the kernel, so they are dropped.
    plain = text.partition("+")[0] if text.startswith("arm") else text
    try:
        return parse(plain, source="gcc")
    except InputError:
        return None


def _problem(tree: Tree, code: str, message: str, path: str) -> None:
    tree.problems.append(MachineProblem(code, f"/{path.lstrip('/')}: {message}", f"/{path.lstrip('/')}"))
