"""`hetsched isa inspect`: what a program, an image or a folder of programs needs of a node.

Rule: the requirement is what the bytes state. With `--hints` a disassembler tells which instructions occur besides;
they may be guarded at run time, so they are shown apart and never become part of the requirement.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hetsched.adapters.oci.disassembly import disassembly_hints
from hetsched.adapters.oci.inspection import inspect_bytes, inspect_path
from hetsched.contracts.errors import InputError

from .isa_output import Document, as_text, fail, print_rows, printable
from .output import Output, OutputFormat, print_json

_SHOWN_PROGRAMS = 20


def inspect_command(
    file: Annotated[
        Path,
        typer.Argument(
            help="An ELF program, an OCI image layout or archive, a folder of programs; - is standard input."
        ),
    ],
    hints: Annotated[
        bool, typer.Option("--hints", help="Also disassemble a program with objdump and tell what instructions occur.")
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Say what a program, an image or a whole folder needs, as a requirement string."""
    try:
        found = inspect_bytes(sys.stdin.buffer.read(), "-") if str(file) == "-" else inspect_path(file)
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
        del document["requirement"]  # there is one for each architecture
    if hints:
        document["hints"] = _hints_as_text(document["hints"])
    print_rows({name: as_text(value) for name, value in document.items()})
    for program in programs[:_SHOWN_PROGRAMS]:
        print_rows({program["file"]: f"{program['requirement'] or program['machine']} ({program['evidence']})"})
    if len(programs) > _SHOWN_PROGRAMS:
        print_rows({"": f"and {len(programs) - _SHOWN_PROGRAMS} further programs; -o json tells them"})


def _hints_as_text(hints: Document) -> str:
    occur = as_text(hints["instructions"]) or "no instructions of optional features"
    return f"{occur} (by {hints['by']}, not certain)"
