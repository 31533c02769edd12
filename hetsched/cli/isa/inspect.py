"""`hetsched isa inspect`: requirements of a program, an image or a folder of programs.

The requirement is the one stated in the files. With `--hints` a disassembler lists other instructions in use; they may
be guarded at run time, so they are shown separately and never become part of the requirement.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from hetsched.adapters.oci.disassembly import disassembly_hints
from hetsched.adapters.oci.inspection import Inspection, inspect_path
from hetsched.contracts.errors import InputError

from ..output import Output, OutputFormat, print_json
from .output import Document, as_text, fail, print_rows, printable

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
        del document["requirement"]  # one for each architecture is in the document
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
    """Inspect a copy of standard input in a file: an archive may be larger than the memory."""
    with tempfile.NamedTemporaryFile(prefix="hetsched-inspect-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        return inspect_path(Path(copy.name))
