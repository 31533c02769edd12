"""`hetsched`: all commands under one name.

Every invalid input results in one message on standard error and exit code 2, an unreachable server or a rejected token
in exit code 3, and Ctrl-C in exit code 130. Commands also report their results as exit codes.
The commands `agent` (which parses its own command line), `completion`, `crds` and `version` are also in this module.
"""

from __future__ import annotations

import difflib
import enum
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.completion import get_completion_script
from typer.core import TyperGroup

from hetsched import __version__
from hetsched.adapters import assets
from hetsched.agent import command as agent_command
from hetsched.contracts.errors import InputError, missing_package

from . import advise, check, cluster, docs, look, policy, resources, shadow
from .bench import command as bench
from .client import EXIT_UNREACHABLE, ServerUnavailable
from .examples import examples
from .isa import command as isa
from .kinds import command_hint
from .lab import experiment, simulate
from .mcp import command as mcp
from .output import Output, OutputFormat, console, print_error, print_json
from .server import audit, backup, certs, health, scheduler, standalone, token
from .workloads import batch, decisions, hold, plans, webhook, whatif, workloads


def crds() -> None:
    """Print the CustomResourceDefinitions NodeGpu, NodeUsage and SchedulingPolicy as YAML."""
    for file in sorted(assets.CRDS.glob("*.yaml")):
        print(f"---\n{file.read_text().strip()}")


COMPLETION_VARIABLE = "_HETSCHED_COMPLETE"


class ShellName(enum.StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[ShellName, typer.Argument(help="Shell for which to print the completion script.")],
) -> None:
    """Print the shell completion script, which completes names from the server in HETSCHED_SERVER."""
    print(get_completion_script(prog_name="hetsched", complete_var=COMPLETION_VARIABLE, shell=shell.value))


SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def agent(context: typer.Context) -> None:
    """Report facts about this machine once or continuously: instruction sets, CPUs and zones, GPUs, kubelet, load."""
    raise typer.Exit(agent_command.main(context.args))


EXIT_INPUT = 2
_NO_CHOICE = re.compile(r"'([^']*)' is not one of (.+)\.")
_USAGE_CODES = {
    "NoSuchOption": "OptionUnknown",
    "MissingParameter": "OptionMissing",
    "BadParameter": "OptionInvalid",
}


class RootCommand(TyperGroup):
    """Root command, which converts every input error into one message and an exit code."""

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
            error.hint = command_hint(error.hint)
            print_error(error)
            code = EXIT_INPUT
        except ServerUnavailable as error:
            print_error(error.problem)
            code = EXIT_UNREACHABLE
        except typer.TyperException as error:
            if error.format_message():  # empty if a group without a subcommand printed its help
                print_error(_usage(error))
            code = EXIT_INPUT
        except ModuleNotFoundError as error:
            print_error(missing_package(error))
            code = EXIT_INPUT
        except OSError as error:
            if error.filename is None:
                raise
            print_error(InputError("FileUnusable", error.strerror or str(error), place=str(error.filename)))
            code = EXIT_INPUT
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: typer.TyperException) -> InputError:
    """Return the input error for an invalid command line."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "hetsched"
    code = _USAGE_CODES.get(type(error).__name__, "UsageWrong")
    message = " ".join(error.format_message().replace("Value error, ", "").split())
    return InputError(code, message, place=command, hint=f"{_choice_hint(message)}See {command} --help")


def _choice_hint(message: str) -> str:
    """Return a hint with the most similar choice, if any is similar."""
    found = _NO_CHOICE.search(message)
    near = difflib.get_close_matches(found[1], re.findall(r"'([^']*)'", found[2]), n=1) if found else []
    return f"Did you mean {near[0]}? " if near else ""


app = typer.Typer(
    cls=RootCommand,
    name="hetsched",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_OFFLINE, _SERVER, _HERE = (
    "Commands on files, without a server",
    "Commands for a server",
    "Commands for the server's machine",
)


def version(output: Output = OutputFormat.TEXT) -> None:
    """Print the version."""
    if output is OutputFormat.JSON:
        print_json({"version": __version__})
    else:
        console().print(f"hetsched {__version__}")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Schedule workloads on heterogeneous Kubernetes clusters, explain decisions and simulate changes."""


_COMMANDS: dict[str, tuple[typer.Typer | Callable[..., Any], ...]] = {
    _OFFLINE: (
        look.look, whatif.whatif, advise.advise, check.check, simulate.simulate, experiment.experiment, bench.bench,
        isa.app, docs.docs, completion, crds, version,
    ),
    _SERVER: (
        workloads.submit, workloads.wait, resources.get, decisions.explain, workloads.cancel, workloads.retry,
        plans.plan, hold.app, batch.batch, cluster.app, policy.app, shadow.app, webhook.app, webhook.redeliver, mcp.mcp,
    ),
    _HERE: (
        standalone.standalone, scheduler.scheduler, agent, certs.certs, backup.backup, backup.restore,
        health.health, token.app, audit.app,
    ),
}  # fmt: skip
_GROUPS = {isa.app: "isa", cluster.app: "cluster", policy.app: "policy", shadow.app: "shadow", token.app: "token"}
_GROUPS |= {audit.app: "audit", hold.app: "hold", webhook.app: "webhook"}

for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        if isinstance(_command, typer.Typer):
            _name = _GROUPS[_command]
            app.add_typer(_command, name=_name, rich_help_panel=_panel, epilog=examples(_name))
        elif _command is agent:  # the agent parses its own options
            app.command(rich_help_panel=_panel, context_settings=SETTINGS, add_help_option=False)(_command)
        else:
            app.command(rich_help_panel=_panel, epilog=examples(_command.__name__))(_command)


def main() -> None:
    """Run the command line; as a plugin of kubectl, the program is named `kubectl hetsched`."""
    is_plugin = Path(sys.argv[0]).stem == "kubectl-hetsched"
    app(prog_name="kubectl hetsched" if is_plugin else "hetsched")
