"""`hetsched backup` and `hetsched restore`: the server's database as one file, and back.

Rule: a backup is of one moment and may be taken while everything runs. A restore fills a new database, of either kind,
and changes nothing else: what a cluster became since is learnt when it is followed again, before anything is decided
for it. Leases of the time before end, and their epochs are never given again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hetsched.contracts.errors import InputError

from .output import Output, OutputFormat, note, print_json
from .token import open_server_database, use_own_key

EXIT_BROKEN = 1

DataFolder = Annotated[Path | None, typer.Option(help="Data folder of a standalone server.")]


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; one of this name is replaced.")],
    data: DataFolder = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Write the server's whole database to a file, while it runs."""
    use_own_key(data)
    open_server_database(data)
    from django.db import Error

    from hetsched.journal import backup as archive

    try:
        rows = archive.write(file)
    except Error as error:
        raise _not_ready(error) from None
    _tell(output, file, rows)
    note("It holds digests of passwords and tokens, and kubeconfigs sealed by SECRET_KEY: keep that key elsewhere")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that backup wrote.")],
    output: Output = OutputFormat.TEXT,
) -> None:
    """Fill the new, empty database that DATABASE_URL or HETSCHED_DATA names from a backup."""
    use_own_key(None)
    open_server_database(None)
    from django.core.management import call_command
    from django.db import Error

    from hetsched.inventory.lease import end_all
    from hetsched.inventory.models import Cluster, Sync
    from hetsched.journal import backup as archive
    from hetsched.placement.queries.invariants import check_invariants

    try:
        call_command("migrate", verbosity=0, interactive=False)
        _refuse_used()
        rows, opens = archive.read(file)
        end_all()
        Sync.objects.all().delete()
        found = check_invariants()
    except Error as error:
        raise _not_ready(error) from None
    _tell(output, file, rows)
    if not opens:
        names = ", ".join(Cluster.objects.filter(connection__isnull=False).values_list("name", flat=True))
        note("SECRET_KEY is not the one of the backup: people log in again, and what it sealed does not open")
        note(f"Set the key of that time, or connect these clusters again: {names or 'none'}")
    for violation in found:
        note(f"broken: {violation}")
    if found:
        raise typer.Exit(EXIT_BROKEN)


def _refuse_used() -> None:
    from django.contrib.auth import get_user_model

    from hetsched.inventory.models import Cluster

    if Cluster.objects.exists() or get_user_model().objects.exists():
        hint = "Name a new one by DATABASE_URL, or by HETSCHED_DATA an empty folder"
        raise InputError("DatabaseNotEmpty", "this database is in use; nothing was changed", hint=hint)


def _not_ready(error: Any) -> InputError:
    hint = "Check HETSCHED_DATA and DATABASE_URL"
    return InputError("DatabaseNotReady", str(error).strip().splitlines()[0], hint=hint)


def _tell(output: OutputFormat, file: Path, rows: dict[str, int]) -> None:
    if output is OutputFormat.JSON:
        print_json({"file": str(file), "rows": rows})
    else:
        note(f"{sum(rows.values())} rows of {len(rows)} tables: {file}")
