"""Instruction sets that a machine can emulate: the entries of binfmt_misc, and trials of their interpreters.

An entry names an interpreter but not the CPU that it emulates. The usable extensions and the slowdown depend on the
interpreter and its version. An entry is reported only if containers can use it. On this machine the interpreter is
tried once with tiny programs (`trials`). The kernel runs these programs like those of any container, so an agent in a
container also detects the machine's emulation. The version is read if the interpreter is on this file system and owned
by root. If the tree is not this machine, or the interpreter cannot be tried, the ISA of the oldest supported version is
reported, with unknown slowdown.

An entry adds a machine type if binfmt_misc and the entry are enabled, its magic contains the 64-bit class (ELF byte 4)
and a known machine type (ELF bytes 18 and 19), and flag F is set. With flag F the interpreter is opened at
registration, so it works inside containers. The instruction set is that of the emulated CPU model.
Source: Linux Documentation/admin-guide/binfmt-misc.rst; the CPU model of QEMU 7.2 was determined by running programs.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import NamedTuple

import msgspec

from hetsched.agent.isa.trials import emulated_isa, slowdown
from hetsched.agent.programs import is_root_owned, run
from hetsched.agent.tree import Tree
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_report import EmulatedIsa, MachineProblem
from hetsched.isa.codes import refuse
from hetsched.isa.requirement import parse
from hetsched.isa.value import Isa

# Usable extensions of QEMU 7.2's default riscv64 model; hint instructions are no-ops where they are not implemented.
QEMU_72_RISCV64 = "rv64imafdc_zicntr_zicsr_zifencei_zihintntl_zihintpause_zicbop_zba_zbb_zbc_zbs"
_DEFAULT_MODELS = {"riscv64": QEMU_72_RISCV64, "aarch64": "armv8.0-a", "x86_64": "x86-64-v1"}
_MACHINE_BYTES = {b"\xf3\x00": "riscv64", b"\xb7\x00": "aarch64", b"\x3e\x00": "x86_64"}


class EmulatedOffer(msgspec.Struct, frozen=True):
    """One instruction set that a node can emulate, and the program that emulates it."""

    isa: Isa
    by: str
    version: str | None = None


def offer_from_binfmt(
    entry: str, *, enabled: bool, model: str | None = None, version: str | None = None
) -> EmulatedOffer | None:
    """Parse one file in /proc/sys/fs/binfmt_misc; `enabled` is the global status.

    `model` is the instruction set of the emulated CPU if known (`QEMU_CPU`, a newer default); otherwise the minimum of
    all supported QEMU versions is assumed. Returns None if containers cannot use the entry, or if it is not for 64-bit
    programs. Raises: InputError.
    """
    lines = entry.split("\n")
    fields = dict(_field(line) for line in lines[1:] if line.strip())
    if lines[0].strip() not in ("enabled", "disabled"):
        refuse("BinfmtMalformed", "a binfmt_misc entry must begin with enabled or disabled")
    try:
        magic, offset = bytes.fromhex(fields.get("magic", "")), int(fields.get("offset", "0"))
    except ValueError:
        refuse("BinfmtMalformed", "the magic or offset of the binfmt_misc entry is not a number")
    machine = _MACHINE_BYTES.get(magic[18:20]) if offset == 0 and magic[4:5] == b"\x02" else None
    usable = enabled and lines[0].strip() == "enabled" and "F" in fields.get("flags", "")
    if machine is None or not usable:
        return None
    isa = parse(model or _DEFAULT_MODELS[machine], source="dt-isa-extensions")
    return EmulatedOffer(isa=isa, by=fields.get("interpreter", "qemu"), version=version)


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.strip().partition(" ")
    return name.rstrip(":"), value.strip()


FOLDER = "proc/sys/fs/binfmt_misc"
MAX_ENTRIES = 256
_VERSION = re.compile(r"version ([0-9][^\s,]*)")
_MACHINES = {"riscv": "riscv64", "arm": "aarch64", "x86": "x86_64"}


class InterpreterTrial(NamedTuple):
    """Result of the trial of an interpreter; all fields are None if it could not be run."""

    version: str | None = None
    isa: str | None = None
    slowdown: float | None = None


def probe_emulation(tree: Tree) -> tuple[EmulatedIsa, ...]:
    """Return the instruction sets that containers can run by emulation, sorted by their text."""
    enabled = tree.text(f"{FOLDER}/status", 64) == "enabled"
    names = [name for name in tree.names(FOLDER) if name not in ("register", "status")]
    if len(names) > MAX_ENTRIES:
        _problem(tree, "TooManyBinfmtEntries", f"only {MAX_ENTRIES} entries of this folder are read", FOLDER)
    found = {}
    for name in names[:MAX_ENTRIES]:
        path = f"{FOLDER}/{name}"
        offer = _offer(tree, path, enabled=enabled)
        if offer is not None:
            known = _try_offer(tree, path, offer)
            emulated = EmulatedIsa(known.isa or offer.isa.canonical, offer.by, known.version, known.slowdown)
            found[emulated.isa, emulated.by] = emulated
    return tuple(found[key] for key in sorted(found))


def _offer(tree: Tree, path: str, *, enabled: bool) -> EmulatedOffer | None:
    text = tree.text(path, 8192)
    if text is None:
        return None
    try:
        return offer_from_binfmt(text, enabled=enabled)
    except InputError as error:
        _problem(tree, error.code, error.message, path)
        return None


def _try_offer(tree: Tree, path: str, offer: EmulatedOffer) -> InterpreterTrial:
    tried = InterpreterTrial()
    if tree.is_this_machine:
        tried = _run_trial(_MACHINES[offer.isa.arch], offer.by, tree.text(path, 8192) or "")
        if is_root_owned(offer.by):
            # Run the program under its own name, not that of a link: under some names QEMU expects other arguments.
            program = os.path.realpath(offer.by)
            tried = tried._replace(version=_version(program, os.stat(program).st_mtime_ns))
    if tried.isa is None:
        _problem(
            tree, "EmulatorNotTried", "emulator not tested: its oldest ISA is offered, with unknown slowdown", path
        )
    elif tried.slowdown is None:
        _problem(tree, "EmulationNotMeasured", "the slowdown of the emulation is unknown", path)
    return tried


@lru_cache(maxsize=64)
def _run_trial(machine: str, _interpreter: str, _entry: str) -> InterpreterTrial:
    """Try the interpreter that the kernel selects for `machine`; the result is cached until its entry changes."""
    isa = emulated_isa(None, machine)
    return InterpreterTrial(None, isa.canonical if isa else None, slowdown(None, machine) if isa else None)


@lru_cache(maxsize=64)
def _version(interpreter: str, _changed: int) -> str | None:
    completed = run([interpreter, "--version"])
    found = _VERSION.search(completed.output) if completed else None
    return found[1] if found else None


def _problem(tree: Tree, code: str, message: str, path: str) -> None:
    tree.problems.append(MachineProblem(code, f"/{path}: {message}", f"/{path}"))
