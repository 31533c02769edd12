"""`hetsched certs`: create the mutual TLS certificates of kube-scheduler and the extender."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..output import console


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder; created if it does not exist.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name or address of the extender; can be repeated. Default: the names of this machine.",
            show_default=False,
        ),
    ] = None,
    client: Annotated[
        str, typer.Option(help="Name of the scheduler as listed in HETSCHED_EXTENDER_CLIENTS.")
    ] = "kube-scheduler",
    days: Annotated[int, typer.Option(help="Days until both certificates expire.", min=1, max=825)] = 365,
) -> None:
    """Create certificates for the extender and kube-scheduler; the private CA is reused by the next run."""
    from hetsched.adapters.http.certificates import make_pairs

    make_pairs(folder, hosts=host or ["localhost", "127.0.0.1"], client=client, days=days)
    out = console()
    out.print(f"{folder}/server   for the extender: set HETSCHED_EXTENDER_CERTIFICATES, or create a Secret from it")
    out.print(f"{folder}/client   for kube-scheduler: set tlsConfig, or create a Secret from it")
    out.print(f"HETSCHED_EXTENDER_CLIENTS={client}")
