"""`hetsched isa`: read, compare, detect and inspect instruction sets; needs no server and no database.

Rule: a wrong string is answered with its code and exit 2; `check` exits 0 or 1. With `-` in place of the arguments each
line of standard input is answered by one JSON document on its own line, wrong lines included.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.markup import escape

from hetsched.adapters.oci_layout import read_platforms
from hetsched.contracts.errors import InputError
from hetsched.isa import Isa, match, parse, read_cpuinfo
from hetsched.isa.elf import inspect_elf
from hetsched.isa.platforms import image_floors, image_warnings
from hetsched.isa.value import Source

from .output import Output, OutputFormat, console, print_error, print_json, table

app = typer.Typer(no_args_is_help=True, help="Instruction sets: read, compare, detect, inspect.")
Document = dict[str, Any]
_TAR_MAGIC = slice(257, 262)

SourceOption = Annotated[Source, typer.Option("--source", help="Where the string (for check: OFFERED) comes from.")]


@app.command("parse")
def parse_command(
    string: Annotated[str, typer.Argument(help="An ISA string; - reads one from each line of standard input.")],
    source: SourceOption = "pod-label",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Say what a string means."""
    if string == "-":
        _stream(lambda line: _isa_document(parse(line, source=source)))
        return
    try:
        isa = parse(string, source=source)
    except InputError as error:
        _fail(error, output, string)
    if output is OutputFormat.JSON:
        print_json(_isa_document(isa))
        return
    rows = {"canonical": isa.canonical, "architecture": f"{isa.arch}, {isa.xlen} bit", "base": isa.base}
    rows |= {"profile": isa.profile or ""} | {"extensions": " ".join(sorted(isa.extensions))}
    _print_rows(rows | {"not believed": " ".join(isa.untrusted)})


@app.command("check")
def check_command(
    required: Annotated[str, typer.Argument(help="What a program needs; - reads REQUIRED, tab, OFFERED lines.")],
    offered: Annotated[str | None, typer.Argument(help="What a machine has.")] = None,
    source: SourceOption = "pod-label",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Say whether OFFERED covers REQUIRED, and what is missing (exit 0 or 1)."""
    if required == "-" and offered is None:
        _stream(lambda line: _pair_document(line, source))
        return
    if offered is None:
        raise typer.BadParameter("OFFERED is missing", param_hint="OFFERED")
    wanted = _parse_or_fail(required, "pod-label", output)
    document = _check_document(wanted, _parse_or_fail(offered, source, output))
    if output is OutputFormat.JSON:
        print_json(document)
    elif document["satisfied"]:
        console().print(f"[green]satisfied[/], affinity {document['affinity']}")
    else:
        console().print(f"[red]not satisfied[/], missing: {escape(' '.join(document['missing']))}", soft_wrap=True)
    if output is OutputFormat.TEXT and "unreported" in document:
        console().print(f"not reported by the kernel: {' '.join(document['unreported'])}", soft_wrap=True)
    raise typer.Exit(0 if document["satisfied"] else 1)


@app.command("detect")
def detect_command(
    cpuinfo: Annotated[
        str, typer.Option("--cpuinfo", help="A /proc/cpuinfo text of any machine; - is standard input.")
    ],
    output: Output = OutputFormat.TEXT,
) -> None:
    """Say what machine a /proc/cpuinfo text shows: family, level or extensions, every feature."""
    try:
        report = read_cpuinfo(_read(cpuinfo).decode("utf-8", "replace"))
    except InputError as error:
        _fail(error, output, cpuinfo)
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
        _print_rows({name: _as_text(value) for name, value in document.items()})


@app.command("inspect")
def inspect_command(
    file: Annotated[Path, typer.Argument(help="An ELF program, or an OCI image layout (directory or tar).")],
    output: Output = OutputFormat.TEXT,
) -> None:
    """Say what a program or an image needs, as a requirement string."""
    try:
        document = {"file": _printable(str(file))} | (
            _image_document(file) if _is_image(file) else _program_document(file)
        )
    except InputError as error:
        _fail(error, output, str(file))
    if output is OutputFormat.JSON:
        print_json(document)
    else:
        _print_rows({name: _as_text(value) for name, value in document.items()})


def _isa_document(isa: Isa) -> Document:
    document: Document = {
        "input": isa.input,
        "arch": isa.arch,
        "xlen": isa.xlen,
        "base": isa.base,
        "extensions": sorted(isa.extensions),
        "canonical": isa.canonical,
    }
    if isa.versions:
        document["versions"] = {name: f"{major}.{minor}" for name, major, minor in isa.versions}
    if isa.untrusted:
        document["untrusted"] = list(isa.untrusted)
    return document


def _check_document(required: Isa, offered: Isa) -> Document:
    result = match(required, offered)
    document: Document = {
        "satisfied": result.satisfied,
        "missing": list(result.missing),
        "affinity": result.affinity,
        "mode": "native" if result.satisfied else None,
    }
    return document | ({"unreported": list(result.unreported)} if result.unreported else {})


def _pair_document(line: str, source: Source) -> Document:
    required, tab, offered = line.partition("\t")
    if not tab:
        raise InputError("IsaMissingPair", "a line is REQUIRED, tab, OFFERED")
    return _check_document(parse(required), parse(offered, source=source))


def _program_document(file: Path) -> Document:
    try:
        with file.open("rb") as stream:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise InputError("ElfMalformed", "the file is no ELF file: it is empty or cannot be mapped") from error
    need = inspect_elf(memoryview(data))
    document = {"format": "elf", "machine": need.machine, "bits": need.bits}
    document |= {"requirement": need.requirement, "evidence": need.evidence}
    return document | ({"archAttribute": need.arch_attribute} if need.arch_attribute else {})


def _is_image(file: Path) -> bool:
    if file.is_dir():
        return True
    try:
        with file.open("rb") as stream:
            start = stream.read(_TAR_MAGIC.stop)
    except OSError as error:
        raise _unreadable(str(file), error) from error
    return start[_TAR_MAGIC] == b"ustar" or start[:2] == b"\x1f\x8b"


def _image_document(file: Path) -> Document:
    platforms = read_platforms(file)
    floors = image_floors(platforms)
    requirements = {name: floor.canonical if floor else None for name, floor in floors.items()}
    single = next(iter(requirements.values())) if len(requirements) == 1 else None
    document = {"format": "oci-layout", "platforms": list(platforms), "requirements": requirements}
    return document | {"requirement": single, "warnings": image_warnings(platforms)}


def _parse_or_fail(string: str, source: Source, output: OutputFormat) -> Isa:
    try:
        return parse(string, source=source)
    except InputError as error:
        _fail(error, output, string)


def _fail(error: InputError, output: OutputFormat, given: str) -> NoReturn:
    if output is OutputFormat.JSON:
        print_json(_error_document(given, error))
    print_error(error)
    raise typer.Exit(2)


def _error_document(given: str, error: InputError) -> Document:
    return {"input": _printable(given), "error": {"code": error.code, "message": _printable(error.message)}}


def _stream(answer: Callable[[str], Document]) -> None:
    """Answer each line at once, so that another program may talk with this one over pipes."""
    encode = msgspec.json.Encoder().encode
    out = sys.stdout.buffer
    for raw in sys.stdin.buffer:
        line = raw.rstrip(b"\r\n").decode("utf-8", "replace")
        try:
            document = answer(line)
        except InputError as error:
            document = _error_document(line, error)
        out.write(encode(document) + b"\n")
        out.flush()


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError) -> InputError:
    return InputError("FileUnreadable", f"{name} cannot be read: {error.strerror or error}")


def _printable(text: str) -> str:
    """Replace what a shell passed although it is no UTF-8: JSON cannot hold it."""
    return text.encode("utf-8", "replace").decode()


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_as_text(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return "unknown" if value is None else str(value)


def _print_rows(rows: dict[str, str]) -> None:
    made = table("", "")
    made.show_header = False
    for name, value in rows.items():
        if value:
            made.add_row(escape(name), escape(value))
    console().print(made)
