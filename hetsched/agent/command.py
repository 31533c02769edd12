"""`hetsched agent`: print a report about this machine once, or run as a daemon that sends reports to the control plane.

The agent runs on every node, so its command line must not load the modules of the other commands. `--once` prints the
report as text or as one JSON document and exits; otherwise `hetsched.agent.program` runs. An invalid option or an
unreadable file gives one line on standard error and exit code 2. A fact of the machine that cannot be read is not an
error: it is null in the report, with a reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

import msgspec

from hetsched.agent.options import add_options, reporting
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError, missing_package
from hetsched.contracts.messages.agent_report import AgentReport, MachineCard, MachineIsa, MachineZone

_WIDTH = 12
Item = TypeVar("Item")


def lines_of(report: AgentReport) -> Iterator[str]:
    """Yield the lines of the text output; unknown facts are marked as unknown."""
    yield _row("node", report.node or "unknown")
    yield _row("memory", _mib(report.memory_mib))
    yield from _isa_lines(report.isa)
    yield _row("CPUs", "unknown" if report.cpus is None else f"{sum(cpu.online for cpu in report.cpus)} online")
    yield from _listed("zone", report.zones, _zone)
    yield from _listed("card", report.gpus, _card)
    if kubelet := report.kubelet:
        policy, topology = kubelet.cpu_manager_policy or "unknown", kubelet.topology_manager_policy or "unknown"
        yield _row("kubelet", f"CPU manager {policy}, topology manager {topology}")
    if usage := report.usage:
        yield _row("use", ", ".join(f"{name} {amount}" for name, amount in sorted(usage.amounts.items())))
    for problem in report.problems:
        yield _row("problem", f"[{problem.code}] {problem.message}")


def _isa_lines(isa: MachineIsa) -> Iterator[str]:
    yield _row("ISA", _brief(isa.canonical) if isa.canonical else f"unknown ({isa.family or 'unknown'} machine)")
    for source in isa.sources:
        bound = "" if source.bound == "exact" else ", at least"
        yield _row("  by", f"{source.source}{bound}" + (f": but {source.conflict}" if source.conflict else ""))
    for emulated in isa.emulated:
        cost = f"{emulated.slowdown} times slower in a small loop" if emulated.slowdown else "unknown slowdown"
        yield _row(
            "  emulated", f"{_brief(emulated.isa)} by {emulated.by} {emulated.version or '(unknown version)'}, {cost}"
        )
    for cross in isa.cross:
        yield _row("  compiles for", cross)


def _listed(name: str, items: tuple[Item, ...] | None, format_item: Callable[[Item], str]) -> Iterator[str]:
    if not items:
        yield _row(f"{name}s", "unknown" if items is None else "none")
    for item in items or ():
        yield _row(name, format_item(item))


def _zone(zone: MachineZone) -> str:
    return f"{zone.id}: CPUs {zone.cpus or 'none'}, {_mib(zone.memory_mib)}"


def _card(card: MachineCard) -> str:
    health = {True: "healthy", False: "not healthy", None: "health unknown"}[card.healthy]
    zone = "unknown" if card.zone is None else str(card.zone)
    return f"{card.index}: {card.model or 'unknown model'}, {_mib(card.memory_mib)}, zone {zone}, {health}"


def _brief(canonical: str) -> str:
    level, *features = canonical.split("+")
    return f"{level} with {len(features)} further features" if features else level


def _mib(amount: int | None) -> str:
    return "unknown" if amount is None else f"{amount} MiB"


def _row(name: str, value: str) -> str:
    return f"{name:<{_WIDTH}}  {value}"


MAX_DOCUMENT_BYTES = 32 << 20
EXIT_INPUT = 2


class AgentSettings(msgspec.Struct, frozen=True):
    """Options of the command line. If `node` is empty, the host name is used."""

    root: Path = Path("/")
    node: str = ""
    nvidia_smi: Path | None = None


def main(arguments: Sequence[str] | None = None, program: str = "hetsched agent") -> int:
    """Run the command and return its exit code."""
    given = _parser(program).parse_args(arguments)
    settings = AgentSettings(root=given.root, node=given.node, nvidia_smi=given.nvidia_smi)
    try:
        return _run(given, settings)
    except ModuleNotFoundError as error:
        return _reject(missing_package(error))
    except InputError as error:
        return _reject(error)


def _run(given: argparse.Namespace, settings: AgentSettings) -> int:
    if not settings.root.is_dir():
        raise InputError("FileUnusable", "the path is not a directory", place=f"--root {settings.root}")
    document = read_document(settings)
    if given.once:
        _print_once(settings, document, as_json=given.output == "json")
        return 0
    from hetsched.agent.program import main as stay

    return stay(settings, reporting(given), document)


def _reject(error: InputError) -> int:
    place = f"{error.place}: " if error.place else ""
    sys.stderr.write(f"error [{error.code}] {place}{error.message}\n")
    sys.stderr.write(f"  {error.hint}\n" if error.hint else "")
    return EXIT_INPUT


def read_document(settings: AgentSettings) -> bytes | None:
    """Return the nvidia-smi document to read instead of NVML, or None if none is given. Raises: InputError."""
    if settings.nvidia_smi is None:
        return None
    try:
        with settings.nvidia_smi.open("rb") as file:
            document = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise InputError("FileUnusable", error.strerror or str(error), place=str(settings.nvidia_smi)) from error
    if len(document) > MAX_DOCUMENT_BYTES:
        raise InputError(
            "FileUnusable", f"the file is larger than {MAX_DOCUMENT_BYTES} bytes", place=str(settings.nvidia_smi)
        )
    return document


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Report the facts of this machine: instruction sets, CPUs, NUMA zones, GPUs, kubelet, load.",
    )
    parser.add_argument("--once", action="store_true", help="print the facts of this machine and exit")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="output format of --once")
    parser.add_argument(
        "--root", type=Path, default=Path("/"), metavar="DIR", help="folder with /proc and /sys of another machine"
    )
    parser.add_argument(
        "--nvidia-smi", type=Path, metavar="FILE", help="nvidia-smi -q -x document to read instead of the driver"
    )
    parser.add_argument("--node", default="", metavar="NAME", help="name of the node; default: the host name")
    add_options(parser)
    return parser


def _print_once(settings: AgentSettings, nvidia_smi: bytes | None, *, as_json: bool) -> None:
    from hetsched.agent.machine import read_machine
    from hetsched.agent.tree import Tree

    report = read_machine(Tree(settings.root), node=settings.node, nvidia_smi=nvidia_smi)
    if as_json:
        sys.stdout.write(msgspec.json.format(encode(report), indent=2).decode() + "\n")
    else:
        _print_text(report, sys.stdout)


def _print_text(report: AgentReport, out: TextIO) -> None:

    for line in lines_of(report):
        # Files of the machine may contain anything; only printable text is written to a terminal.
        out.write("".join(letter if letter.isprintable() else "?" for letter in line) + "\n")
