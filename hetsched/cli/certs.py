"""`hetsched certs`: the certificates by which kube-scheduler and the extender know each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import console


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write to; made where there is none.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or address under which the extender is called; repeat for more. Without any: this machine's.",
            show_default=False,
        ),
    ] = None,
    client: Annotated[
        str, typer.Option(help="Name of the scheduler, as HETSCHED_EXTENDER_CLIENTS lists it.")
    ] = "kube-scheduler",
    days: Annotated[int, typer.Option(help="How long both pairs are valid.", min=1, max=825)] = 365,
) -> None:
    """Make a private authority, kept for the next time, and new pairs for the extender and for kube-scheduler."""
    from hetsched.adapters.http.certificates import make_pairs

    make_pairs(folder, hosts=host or ["localhost", "127.0.0.1"], client=client, days=days)
    out = console()
    out.print(f"{folder}/server   for the extender: HETSCHED_EXTENDER_CERTIFICATES, or a Secret made of it")
    out.print(f"{folder}/client   for kube-scheduler: tlsConfig, or a Secret made of it")
    out.print(f"HETSCHED_EXTENDER_CLIENTS={client}")
