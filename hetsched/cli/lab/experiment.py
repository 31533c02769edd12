"""`hetsched experiment`: reproduce the comparisons of publications, and check their expectations.

Each experiment is a module of `hetsched.lab.experiments` with `run(progress) -> Experiment`. The exit code is 1 if an
expectation of an experiment fails. `openb` reads its data from files (`cli.lab.openb`), so `all` runs it only if lists
are passed.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from hetsched.contracts.documents import to_plain

from ..output import Output, OutputFormat, ProgressDisplay, console, print_json, table
from . import openb
from .reports import ReportFolder, make_folder, write_report

if TYPE_CHECKING:
    from hetsched.lab.experiments.outcome import Experiment, ResultRow

EXIT_EXPECTATION_FAILED = 1


class Name(enum.StrEnum):
    ISAMATCH = "isamatch"
    CASSINI = "cassini"
    GANG = "gang"
    BINPACK = "binpack"
    IHEP = "ihep"
    MBCGT = "mbcgt"
    OPENB = "openb"
    ALL = "all"


def experiment(
    name: Annotated[Name, typer.Argument(help="Experiment to run; `all` runs every experiment.")],
    lists: openb.Lists = None,
    cluster: openb.Nodes = None,
    seeds: openb.Seeds = 5,
    arrival: openb.Arrival = None,
    policy: openb.Policies = None,
    ties: openb.Ties = None,
    report: ReportFolder = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Reproduce the comparison of a publication and print published and measured results.

    The exit code is 1 if the results do not meet an expectation.
    """
    chosen = openb.OpenbOptions(lists or [], cluster or [], seeds, arrival or [], policy or [], ties or [])
    if name not in (Name.OPENB, Name.ALL):
        chosen.refuse(name.value)
    if report is not None:
        make_folder(report)
    names: list[Name] = [name]
    if name is Name.ALL:
        names = [one for one in Name if one is not Name.ALL and (one is not Name.OPENB or lists)]
    study = chosen.study() if Name.OPENB in names else None
    done = [_run(one.value, study if one is Name.OPENB else None) for one in names]
    if report is not None:
        from hetsched.lab.experiments.report import report_files

        write_report(report, report_files(done))
    if output is OutputFormat.JSON:
        print_json({"experiments": [_document(result) for result in done]})
    else:
        for result in done:
            _show(result)
    raise typer.Exit(0 if all(result.held for result in done) else EXIT_EXPECTATION_FAILED)


def _run(name: str, study: Any = None) -> Experiment:
    module: Any = import_module(f"hetsched.lab.experiments.{name}")
    with ProgressDisplay(f"experiment {name}") as track:
        result: Experiment = module.run(track) if study is None else module.run(study, track)
    return result


def _document(result: Experiment) -> dict[str, Any]:
    document: dict[str, Any] = to_plain(result)
    del document["charts"]
    return document


def _show(result: Experiment) -> None:
    out = console()
    kind = " [yellow](reconstruction)[/]" if result.reconstruction else ""
    out.print(f"[bold]{escape(result.title)}[/]{kind}")
    out.print(f"[dim]{escape(result.source)}[/]", soft_wrap=True)
    out.print(_table(result.rows))
    for expectation in result.expectations:
        out.print(f"{'[green]held[/]  ' if expectation.held else '[bold red]FAILED[/]'} {escape(expectation.text)}")
    for text in result.notes:
        out.print(f"[dim]{escape(text)}[/]", soft_wrap=True)
    out.print()


def _table(rows: Sequence[ResultRow]) -> Any:
    from hetsched.lab.plots import number_text

    numbers = ("value", "published")
    shown = table("policy", "case", "metric", *numbers, right=numbers)
    for row in rows:
        shown.add_row(*map(escape, (row.policy, row.case, row.metric)), *map(number_text, (row.value, row.published)))
    return shown
