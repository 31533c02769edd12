"""`--report DIR`: write a report folder at the end of the run, after all its files have been computed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from hetsched.contracts.errors import InputError

from ..output import note

ReportFolder = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="DIR", help="Folder for an HTML report with plots and CSV files.", show_default=False
    ),
]


def make_folder(folder: Path) -> None:
    """Check that the report can be written before the computation starts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".hetsched-report"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "Use a folder that can be created and written"
        raise InputError("ReportFolderUnusable", reason, place=f"--report {folder}", hint=hint) from None


def write_report(folder: Path, content: Mapping[str, bytes]) -> None:
    """Write all files under temporary names, rename them, and print the path of the report."""
    parts = [(folder / name, folder / f".{name}.part", data) for name, data in content.items()]
    for _, part, data in parts:
        part.write_bytes(data)
    for path, part, _ in parts:
        part.replace(path)
    note(f"report: {folder / 'index.html'}")
