"""`hetsched backup` and `hetsched restore`: write the server's database to one file, and restore it.

A backup is a consistent snapshot and may be taken while the server runs. A restore fills a new, empty database (SQLite
or PostgreSQL). It ends all leases, and their epochs are never used again. It deletes the sync state, so that the
informer lists each cluster again before the scheduler schedules its pods.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hetsched.contracts.errors import InputError

from ..output import Output, OutputFormat, note, print_json
from .token import load_secret_key, open_server_database

EXIT_BROKEN = 1

DataFolder = Annotated[Path | None, typer.Option(help="Data folder of a standalone server.")]


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; replaces an existing file.")],
    data: DataFolder = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Write the server's database to a file; the server may keep running."""
    load_secret_key(data)
    open_server_database(data)
    from django.db import Error

    from hetsched.storage import backup

    try:
        rows = backup.write(file)
    except Error as error:
        raise _not_ready(error) from None
    _print_result(output, file, rows)
    note(
        "The file contains password and token digests and kubeconfigs encrypted with SECRET_KEY: "
        "store that key in another place"
    )


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File written by `hetsched backup`.")],
    output: Output = OutputFormat.TEXT,
) -> None:
    """Restore a backup into the new, empty database named by DATABASE_URL or HETSCHED_DATA."""
    load_secret_key(None)
    open_server_database(None, existing=False)
    from django.core.management import call_command
    from django.db import Error

    from hetsched.inventory.models import Cluster, Sync
    from hetsched.placement.queries.invariants import check_invariants
    from hetsched.scheduling.leases import end_all
    from hetsched.storage import backup

    try:
        call_command("migrate", verbosity=0, interactive=False)
        _refuse_used_database()
        rows, opens = backup.read(file)
        end_all()
        Sync.objects.all().delete()
        found = check_invariants()
    except Error as error:
        raise _not_ready(error) from None
    _print_result(output, file, rows)
    if not opens:
        names = ", ".join(Cluster.objects.filter(connection__isnull=False).values_list("name", flat=True))
        note(
            "SECRET_KEY differs from the key of the backup: users must log in again, and "
            "encrypted values cannot be decrypted"
        )
        note(f"Set the SECRET_KEY of the backup, or connect these clusters again: {names or 'none'}")
    for violation in found:
        note(f"broken: {violation}")
    if found:
        raise typer.Exit(EXIT_BROKEN)


def _refuse_used_database() -> None:
    from django.contrib.auth import get_user_model

    from hetsched.inventory.models import Cluster

    if Cluster.objects.exists() or get_user_model().objects.exists():
        hint = "Set DATABASE_URL to a new database or HETSCHED_DATA to an empty folder"
        raise InputError("DatabaseNotEmpty", "the database is not empty; nothing was changed", hint=hint)


def _not_ready(error: Any) -> InputError:
    hint = "Check HETSCHED_DATA and DATABASE_URL"
    return InputError("DatabaseNotReady", str(error).strip().splitlines()[0], hint=hint)


def _print_result(output: OutputFormat, file: Path, rows: dict[str, int]) -> None:
    if output is OutputFormat.JSON:
        print_json({"file": str(file), "rows": rows})
    else:
        note(f"{sum(rows.values())} rows of {len(rows)} tables: {file}")
