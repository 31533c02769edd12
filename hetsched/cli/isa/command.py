"""`hetsched isa`: parse, compare, detect and inspect instruction sets, without a server or a database.

An invalid string is reported with its code and exit code 2; `check` exits with 0 or 1. With `-` in place of the
arguments, each line of standard input, including invalid ones, yields one JSON document on a separate line.

`inspect` reads a program, an image or a folder of programs. The requirement is the one that the files record. With
`--hints` a disassembler also lists instructions in use. They are not part of the requirement, because the program may
execute them only after it has checked the CPU at run time.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape

from hetsched.adapters.oci.disassembly import disassembly_hints
from hetsched.adapters.oci.inspection import Inspection, inspect_path
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.isa import Isa, isa_document, match, parse, read_cpuinfo
from hetsched.isa.value import Source

from ..output import Output, OutputFormat, console, print_error, print_json, table

Document = dict[str, Any]


def fail(error: InputError, output: Output, given: str) -> NoReturn:
    """Print the error about an invalid input, and exit with code 2."""
    if output is OutputFormat.JSON:
        print_json(error_document(given, error))
    hint = error.hint or "Write an ISA such as rv64gc_zba, rva22u64, x86-64-v3+avx512f or armv8.2-a+sve"
    print_error(InputError(error.code, error.message, place=error.place, hint=hint))
    raise typer.Exit(2)


def error_document(given: str, error: InputError) -> Document:
    return {"input": printable(given), "error": {"code": error.code, "message": printable(error.message)}}


def printable(text: str) -> str:
    """Replace bytes of an argument that are not valid UTF-8, because JSON cannot contain them."""
    return text.encode("utf-8", "replace").decode()


def as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {as_text(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return "unknown" if value is None else str(value)


def print_rows(rows: dict[str, str]) -> None:
    grid = table("", "")
    grid.show_header = False
    for name, value in rows.items():
        if value:
            grid.add_row(escape(name), escape(value))
    console().print(grid)


_SHOWN_PROGRAMS = 20


def inspect_command(
    file: Annotated[
        Path,
        typer.Argument(help="ELF program, OCI image layout or archive, or folder of programs; - reads standard input."),
    ],
    hints: Annotated[
        bool,
        typer.Option(
            "--hints", help="Also disassemble programs with objdump and list the instruction-set features in use."
        ),
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Print the requirement string of a program, an image or a folder."""
    try:
        found = _standard_input() if str(file) == "-" else inspect_path(file)
        document: Document = {"file": printable(str(file))} | found.document()
        if hints:
            document["hints"] = disassembly_hints(file)
    except InputError as error:
        named = printable(str(file))
        fail(error if named in error.message else error.at(f"{named} " if error.place else named), output, str(file))
    if output is OutputFormat.JSON:
        print_json(document)
        return
    programs = document.pop("programs", [])
    if len(document.get("requirements", {})) > 1:
        del document["requirement"]  # replaced by `requirements`, one per architecture
    if hints:
        document["hints"] = _hints_as_text(document["hints"])
    print_rows({name: as_text(value) for name, value in document.items()})
    for program in programs[:_SHOWN_PROGRAMS]:
        print_rows({program["file"]: f"{program['requirement'] or program['machine']} ({program['evidence']})"})
    if len(programs) > _SHOWN_PROGRAMS:
        print_rows({"": f"and {len(programs) - _SHOWN_PROGRAMS} more programs; -o json lists all"})


def _hints_as_text(hints: Document) -> str:
    occur = as_text(hints["instructions"]) or "no instructions of optional features"
    return f"{occur} (by {hints['by']}, not certain)"


def _standard_input() -> Inspection:
    """Copy standard input to a temporary file, because an archive may be larger than the memory."""
    with tempfile.NamedTemporaryFile(prefix="hetsched-inspect-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        return inspect_path(Path(copy.name))


app = typer.Typer(no_args_is_help=True, help="Instruction sets: read, compare, detect, inspect.")
app.command("inspect")(inspect_command)

SourceOption = Annotated[
    Source, typer.Option("--source", help="Source of the ISA string; for `check`, it applies only to OFFERED.")
]


@app.command("parse")
def parse_command(
    string: Annotated[str, typer.Argument(help="ISA string; - reads one per line from standard input.")],
    source: SourceOption = "pod-label",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Parse an ISA string."""
    if string == "-":
        _stream(lambda line: isa_document(parse(line, source=source)))
        return
    try:
        isa = parse(string, source=source)
    except InputError as error:
        fail(error.at("STRING"), output, string)
    if output is OutputFormat.JSON:
        print_json(isa_document(isa))
        return
    rows = {"canonical": isa.canonical, "architecture": f"{isa.arch}, {isa.xlen} bit", "base": isa.base}
    rows |= {"profile": isa.profile or ""} | {"extensions": " ".join(sorted(isa.extensions))}
    print_rows(rows | {"not verified": " ".join(isa.untrusted)})


@app.command("check")
def check_command(
    required: Annotated[
        str,
        typer.Argument(
            help="ISA required by a program; - reads tab-separated pairs REQUIRED, OFFERED (one per line) from stdin."
        ),
    ],
    offered: Annotated[str | None, typer.Argument(help="ISA offered by a machine.")] = None,
    source: SourceOption = "pod-label",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check that OFFERED satisfies REQUIRED and print missing extensions (exit 0 or 1)."""
    if required == "-" and offered is None:
        _stream(lambda line: _pair_document(line, source))
        return
    if offered is None:
        raise typer.BadParameter("OFFERED is missing", param_hint="OFFERED")
    wanted = _parse_or_fail("REQUIRED", required, "pod-label", output)
    document = _check_document(wanted, _parse_or_fail("OFFERED", offered, source, output), offered)
    if output is OutputFormat.JSON:
        print_json(document)
    elif document["satisfied"]:
        console().print(f"[green]satisfied[/], affinity {document['affinity']}")
    else:
        console().print(f"[red]not satisfied[/], missing: {escape(' '.join(document['missing']))}", soft_wrap=True)
    if output is OutputFormat.TEXT and "note" in document:
        console().print(f"[dim]{escape(document['note'])}[/]", soft_wrap=True)
    if output is OutputFormat.TEXT and "unreported" in document:
        console().print(f"not reported by the kernel: {' '.join(document['unreported'])}", soft_wrap=True)
    raise typer.Exit(0 if document["satisfied"] else 1)


@app.command("detect")
def detect_command(
    cpuinfo: Annotated[str, typer.Option("--cpuinfo", help="/proc/cpuinfo of any machine; - reads standard input.")],
    output: Output = OutputFormat.TEXT,
) -> None:
    """Detect the ISA in a /proc/cpuinfo file: family, level or extensions, features."""
    try:
        report = read_cpuinfo(_read(cpuinfo).decode("utf-8", "replace"))
    except InputError as error:
        hint = "Use a copy of /proc/cpuinfo"
        fail(InputError(error.code, error.message, place=f"--cpuinfo {cpuinfo}", hint=hint), output, cpuinfo)
    document: Document = {"family": report.family, "xlen": report.xlen}
    document |= {"canonical": report.isa.canonical if report.isa else None}
    if report.family == "riscv" and report.isa:
        document["extensions"] = sorted(report.isa.extensions)
    else:
        document["level"] = report.level
    document |= {"features": list(report.features), "cpus": report.cpus, "notes": list(report.notes)}
    if output is OutputFormat.JSON:
        print_json(document)
    else:
        print_rows({name: as_text(value) for name, value in document.items()})


_NOTE = (
    "with --source node-label the result is `satisfied`: {names} were part of base I before "
    "2019 and are added for nodes"
)


def _check_document(required: Isa, offered: Isa, text: str) -> Document:
    result = match(required, offered)
    document: Document = {
        "satisfied": result.satisfied,
        "missing": list(result.missing),
        "affinity": result.affinity,
        "mode": "native" if result.satisfied else None,
    }
    of_node = parse(text, source="node-label") if offered.source == "pod-label" else offered
    if not result.satisfied and match(required, of_node).satisfied:
        document["note"] = _NOTE.format(names=", ".join(result.missing))
    return document | ({"unreported": list(result.unreported)} if result.unreported else {})


def _pair_document(line: str, source: Source) -> Document:
    required, tab, offered = line.partition("\t")
    if not tab:
        raise InputError("IsaMissingPair", "the line must be REQUIRED, tab, OFFERED")
    return _check_document(parse(required), parse(offered, source=source), offered)


def _parse_or_fail(argument: str, string: str, source: Source, output: OutputFormat) -> Isa:
    try:
        return parse(string, source=source)
    except InputError as error:
        fail(error.at(argument), output, string)


def _stream(answer: Callable[[str], Document]) -> None:
    """Write the result of each line immediately, so that another program can use pipes interactively."""
    out = sys.stdout.buffer
    for raw in sys.stdin.buffer:
        line = raw.rstrip(b"\r\n").decode("utf-8", "replace")
        try:
            document = answer(line)
        except InputError as error:
            document = error_document(line, error)
        out.write(encode(document) + b"\n")
        out.flush()


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> InputError:
    return InputError("FileUnreadable", f"the file cannot be read: {error.strerror or error}")
