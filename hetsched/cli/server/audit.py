"""`hetsched audit verify`: verify the whole audit trail against its seals.

The command opens the server's database, like `hetsched token`. Exit codes: 0 all seals match, 1 some do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError

from ..output import Output, OutputFormat, console, note, print_json
from .token import load_secret_key, open_server_database

EXIT_BROKEN = 1
app = typer.Typer(no_args_is_help=True, help="Verify the audit trail; run on the server's machine.")


@app.callback()
def group() -> None:
    """Verify the audit trail. Run this on the server's machine."""


@app.command()
def verify(
    data: Annotated[Path | None, typer.Option(help="Data folder of a standalone server.")] = None,
    head: Annotated[
        str, typer.Option(help="Digest printed by an earlier run; exit 1 if the trail no longer contains it.")
    ] = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Verify every seal of the audit trail; exit 1 if an entry was changed, removed or inserted."""
    load_secret_key(data)
    open_server_database(data)
    from django.db import OperationalError, ProgrammingError

    from hetsched.journal.chain import chain_state, verify
    from hetsched.journal.models import AuditSeal

    try:
        looked = sum(1 for _ in verify())
        state = chain_state()
        lost = bool(head) and not AuditSeal.objects.filter(digest=head).exists()
    except (OperationalError, ProgrammingError) as error:
        hint = "Start the server once, or run `python manage.py prepare`; check HETSCHED_DATA and DATABASE_URL"
        raise InputError("DatabaseNotReady", str(error).strip().splitlines()[0], hint=hint) from None
    if output is OutputFormat.JSON:
        print_json({**to_plain(state), "seals": looked, "headLost": lost})
    else:
        console().print(
            f"{looked} seals over {state.sealed} entries, the latest {state.unsealed} entries are not sealed yet"
        )
        for broken in state.broken:
            console().print(f"entries {broken.first}-{broken.last}: {broken.problem}")
        if lost:
            console().print(f"no seal has the digest {head}: the trail was truncated or rewritten")
        console().print(f"head {state.head or 'none'}", soft_wrap=True)
        if not state.keyed:
            note(
                "SECRET_KEY is not set, so the seals use no key: a user with write access to "
                "the database can forge them"
            )
    if state.broken or lost:
        raise typer.Exit(EXIT_BROKEN)
