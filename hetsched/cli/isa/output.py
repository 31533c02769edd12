"""Output of the `isa` commands: results and errors."""

from __future__ import annotations

from typing import Any, NoReturn

import typer
from rich.markup import escape

from hetsched.contracts.errors import InputError

from ..output import Output, OutputFormat, console, print_error, print_json, table

Document = dict[str, Any]


def fail(error: InputError, output: Output, given: str) -> NoReturn:
    """Print an invalid input and exit with 2."""
    if output is OutputFormat.JSON:
        print_json(error_document(given, error))
    hint = error.hint or "Write an ISA such as rv64gc_zba, rva22u64, x86-64-v3+avx512f or armv8.2-a+sve"
    print_error(InputError(error.code, error.message, place=error.place, hint=hint))
    raise typer.Exit(2)


def error_document(given: str, error: InputError) -> Document:
    return {"input": printable(given), "error": {"code": error.code, "message": printable(error.message)}}


def printable(text: str) -> str:
    """Replace bytes of an argument that are no UTF-8: JSON cannot hold them."""
    return text.encode("utf-8", "replace").decode()


def as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {as_text(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return "unknown" if value is None else str(value)


def print_rows(rows: dict[str, str]) -> None:
    made = table("", "")
    made.show_header = False
    for name, value in rows.items():
        if value:
            made.add_row(escape(name), escape(value))
    console().print(made)
