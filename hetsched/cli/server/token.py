"""`hetsched token create`: create an API token on the server's machine.

The command opens the server's database, which is selected by HETSCHED_DATA or DATABASE_URL as for every other process.
The plaintext is printed once; only its digest is stored.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from hetsched.contracts.errors import InputError
from hetsched.contracts.times import rfc3339

from ..output import Output, OutputFormat, console, note, print_json

app = typer.Typer(no_args_is_help=True, help="Create API tokens; run on the server's machine.")


@app.callback()
def group() -> None:
    """Create API tokens. Run this on the server's machine."""


@app.command()
def create(
    role: Annotated[str, typer.Option(help="Role: viewer, submitter, operator, policy-admin or agent.")],
    namespace: Annotated[
        list[str] | None, typer.Option(help="Namespace that the token may access; can be repeated.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the token.")] = "",
    cluster: Annotated[str, typer.Option(help="Cluster of the node; only for tokens with the role agent.")] = "",
    node: Annotated[str, typer.Option(help="Node that reports with this token (only with the role agent).")] = "",
    days: Annotated[int, typer.Option(help="Days until the token expires.", min=1, max=90)] = 90,
    quota: Annotated[
        list[str] | None,
        typer.Option(help="Quota of pods submitted with this token, such as pods=20 or cpu=64; can be repeated."),
    ] = None,
    most_priority: Annotated[
        int | None, typer.Option(help="Maximum priority of pods submitted with this token.")
    ] = None,
    submits_per_minute: Annotated[int | None, typer.Option(help="Limit of submissions per minute.")] = None,
    data: Annotated[Path | None, typer.Option(help="Data folder of a standalone server.")] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Create a token and print it once."""
    open_server_database(data)
    from django.conf import settings
    from django.db import OperationalError, ProgrammingError

    from hetsched.access.tokens import bounds_of, create_token
    from hetsched.inventory.models import Cluster

    if not (settings.SECRET_KEY_GIVEN or settings.DEBUG or settings.EMBEDDED):
        raise InputError(
            "SecretKeyMissing", "the server's secret key is unknown, so the server would reject the token",
            place="SECRET_KEY", hint="Set SECRET_KEY or SECRET_KEY_FILE to the value of the server",
        )  # fmt: skip
    try:
        if cluster and not Cluster.objects.filter(name=cluster).exists():
            hint = "Add the cluster first: hetsched cluster add"
            raise InputError("ClusterUnknown", f"unknown cluster {cluster[:80]!r}", place="--cluster", hint=hint)
        token, plaintext = create_token(
            role=role,
            name=name or node,
            namespaces=namespace or [],
            cluster=cluster,
            node=node,
            lifetime=timedelta(days=days),
            most_priority=most_priority,
            submits_per_minute=submits_per_minute,
            quota=_quota(quota or []),
            reason="command line",
        )
    except InputError as error:
        if error.code != "QuotaInvalid":
            raise
        place = error.place.replace("quota", "--quota", 1).replace(".", " ", 1)
        hint = "Use --quota pods=20 --quota cpu=64 --quota memory=256Gi --quota hetsched.io/gpu-milli=4000"
        raise InputError(error.code, error.message, place=place, hint=hint) from None
    except (OperationalError, ProgrammingError) as error:
        hint = (
            "For a standalone server use --data DIR; otherwise check HETSCHED_DATA and DATABASE_URL and run "
            "`python manage.py prepare` once"
        )
        raise InputError("DatabaseNotReady", str(error).strip().splitlines()[0], hint=hint) from None
    if output is OutputFormat.JSON:
        print_json(
            {
                "token": plaintext,
                "name": token.name,
                "role": token.role,
                "namespaces": token.namespaces,
                **({"cluster": token.cluster, "node": token.node} if token.node else {}),
                **bounds_of(token),
                "expires": rfc3339(token.expiry) if token.expiry else None,
            }
        )
        return
    console().print(plaintext, soft_wrap=True)
    note(f"role {token.role}, valid until {token.expiry:%Y-%m-%d}; the token is not shown again")


def load_secret_key(data: Path | None) -> None:
    """Use the secret key in the data folder of a standalone server if the environment does not have a key."""
    from .standalone import default_data_dir

    path = (data or default_data_dir()).expanduser().absolute() / "secret-key"
    if path.is_file() and not (os.environ.get("SECRET_KEY") or os.environ.get("SECRET_KEY_FILE")):
        os.environ["SECRET_KEY_FILE"] = str(path)


def _quota(given: list[str]) -> dict[str, str]:
    """Parse a quota written as `name=amount`."""
    pairs = [part.partition("=") for part in given]
    return {name: amount for name, _, amount in pairs}


def open_server_database(data: Path | None, *, existing: bool = True) -> None:
    """Set up Django with the settings of the server; `data` takes precedence over the environment.

    Raises: InputError `DatabaseNotReady` if `existing` and the data folder contains no database.
    """
    if data is not None:
        if existing:
            _require_file(data.expanduser() / "hetsched.sqlite3")
        os.environ["HETSCHED_DATA"] = str(data.expanduser().absolute())
        os.environ.pop("DATABASE_URL", None)
    if not os.environ.get("DATABASE_URL"):
        load_secret_key(data)  # the server verifies the token with its secret key
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hetsched.project.settings")
    os.environ.setdefault("HETSCHED_LOG_LEVEL", "error")
    import django

    django.setup()
    from django.conf import settings
    from django.db import connection

    database = Path(connection.settings_dict["NAME"])
    if existing and settings.EMBEDDED and database.is_absolute():  # a database in memory has no path
        _require_file(database)


def _require_file(database: Path) -> None:
    """Raises: InputError `DatabaseNotReady` for a missing SQLite file, which opening it would create."""
    if not database.is_file():
        message = f"{database.parent} contains no server database"
        hint = "Start `hetsched standalone` there once, or name the data folder that the server printed with --data DIR"
        raise InputError("DatabaseNotReady", message, place="--data", hint=hint)
