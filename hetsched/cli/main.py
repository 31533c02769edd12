"""`hetsched`: all commands under one name.

Rule: whatever goes wrong with an input ends here as one message on standard error and exit code 2, with an unreachable
server or a refused token as exit code 3, with Ctrl-C as 130. Commands say their own results by exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hetsched import __version__
from hetsched.contracts.errors import InputError

from . import (
    advise,
    agent,
    audit,
    backup,
    bench,
    certs,
    check,
    cluster,
    decisions,
    docs,
    experiment,
    health,
    isa,
    policy,
    resources,
    scheduler,
    shadow,
    simulate,
    standalone,
    token,
    whatif,
    workloads,
)
from .client import EXIT_UNREACHABLE, ServerUnavailable
from .output import console, print_error

EXIT_INPUT = 2
_USAGE_CODES = {
    "NoSuchOption": "OptionUnknown",
    "MissingParameter": "OptionMissing",
    "BadParameter": "OptionInvalid",
}


class Program(TyperGroup):
    """The root command: turns every refused input into one message and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except InputError as error:
            print_error(error)
            code = EXIT_INPUT
        except ServerUnavailable as error:
            print_error(error.told)
            code = EXIT_UNREACHABLE
        except typer.TyperException as error:
            if error.format_message():  # empty where the help was asked for by giving nothing
                print_error(_usage(error))
            code = EXIT_INPUT
        except OSError as error:
            if error.filename is None:
                raise
            print_error(InputError("FileUnusable", error.strerror or str(error), place=str(error.filename)))
            code = EXIT_INPUT
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: typer.TyperException) -> InputError:
    """Say what is wrong with the command line itself."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "hetsched"
    code = _USAGE_CODES.get(type(error).__name__, "UsageWrong")
    message = " ".join(error.format_message().replace("Value error, ", "").split())
    return InputError(code, message, place=command, hint=f"See {command} --help")


app = typer.Typer(
    cls=Program,
    name="hetsched",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_OFFLINE, _SERVER, _HERE = "On files, without a server", "Talk to a server", "Run on the server's machine"


def _print_version(wanted: bool) -> None:
    if wanted:
        console().print(f"hetsched {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Place workloads on a mixed Kubernetes fleet, say why, and try a change before it is made."""


app.command(rich_help_panel=_OFFLINE)(whatif.whatif)
app.command(rich_help_panel=_OFFLINE)(advise.advise)
app.command(rich_help_panel=_OFFLINE)(check.check)
app.command(rich_help_panel=_OFFLINE)(simulate.simulate)
app.command(rich_help_panel=_OFFLINE)(experiment.experiment)
app.command(rich_help_panel=_OFFLINE)(bench.bench)
app.add_typer(isa.app, name="isa", rich_help_panel=_OFFLINE)
app.command(rich_help_panel=_OFFLINE)(docs.docs)
app.command(rich_help_panel=_SERVER)(workloads.submit)
app.command(rich_help_panel=_SERVER)(workloads.wait)
app.command(rich_help_panel=_SERVER)(resources.get)
app.command(rich_help_panel=_SERVER)(decisions.explain)
app.add_typer(cluster.app, name="cluster", rich_help_panel=_SERVER)
app.add_typer(policy.app, name="policy", rich_help_panel=_SERVER)
app.add_typer(shadow.app, name="shadow", rich_help_panel=_SERVER)
app.command(rich_help_panel=_HERE)(standalone.standalone)
app.command(rich_help_panel=_HERE)(scheduler.scheduler)
app.command(rich_help_panel=_HERE, context_settings=agent.SETTINGS, add_help_option=False)(agent.agent)
app.command(rich_help_panel=_HERE)(certs.certs)
app.command(rich_help_panel=_HERE)(backup.backup)
app.command(rich_help_panel=_HERE)(backup.restore)
app.command(rich_help_panel=_HERE)(health.health)
app.add_typer(token.app, name="token", rich_help_panel=_HERE)
app.add_typer(audit.app, name="audit", rich_help_panel=_HERE)


def main() -> None:
    """Run the command line."""
    app()
