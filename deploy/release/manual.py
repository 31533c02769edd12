"""Manual pages and completion scripts of the command line, from its command tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from typer.completion import get_completion_script
from typer.main import get_command

from hetsched.cli import main as cli
from hetsched.cli.examples import EXAMPLES

SHELLS = {"bash": "hetsched", "zsh": "_hetsched", "fish": "hetsched.fish"}
_SECTION = "1"


def write_pages(folder: Path, version: str, seconds: int) -> None:
    """Write one page for each command into `folder`, with the date of `seconds` (Unix time): hetsched-submit.1."""
    folder.mkdir(parents=True)
    date = datetime.fromtimestamp(seconds, UTC).date().isoformat()
    for words, command in _commands((), get_command(cli.app)):
        name = "-".join(("hetsched", *words))
        (folder / f"{name}.{_SECTION}").write_text(
            page(name, words, command, f"hetsched {version}", date), encoding="utf-8"
        )


def write_completions(folder: Path) -> None:
    """Write the completion script of each shell, under the file name that the shell looks for."""
    folder.mkdir(parents=True)
    for shell, file in SHELLS.items():
        script = get_completion_script(prog_name="hetsched", complete_var=cli.COMPLETION_VARIABLE, shell=shell)
        (folder / file).write_text(script.rstrip() + "\n", encoding="utf-8")


def page(name: str, words: tuple[str, ...], command: Any, source: str, date: str) -> str:
    """Return the page of one command in the macros of man(7); `words` select the command."""
    summary, _, rest = _help(command).partition("\n")
    context = command.make_context(" ".join(("hetsched", *words)), [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f'.TH "{name.upper()}" "{_SECTION}" "{date}" "{source}" "hetsched manual"']
    lines += [".SH NAME", f"{_text(name)} \\- {_text(summary.rstrip('.'))}"]
    lines += [".SH SYNOPSIS", f".B {_text(' '.join(('hetsched', *words)))}", _text(usage)]
    if rest.strip():
        lines += [".SH DESCRIPTION", *_paragraphs(rest)]
    options = [record for record in (parameter.get_help_record(context) for parameter in command.params) if record]
    if options:
        lines += [".SH OPTIONS"]
        for option, meaning in options:
            lines += [".TP", f".B {_text(option)}", _text(" ".join(meaning.split()))]
    children = _children(command)
    if children:
        lines += [".SH COMMANDS"]
        for child, below in children:
            lines += [".TP", f".BR {_text('-'.join((name, child)))} (1)", _text(_help(below).partition("\n")[0])]
    examples = EXAMPLES.get(words[0] if len(words) == 1 else "", ())
    if examples:
        lines += [".SH EXAMPLES", ".nf", *map(_text, examples), ".fi"]
    if words:
        lines += [".SH SEE ALSO", f".BR {_text('-'.join(('hetsched', *words[:-1])))} (1)"]
    return "\n".join(lines) + "\n"


def _commands(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, child in _children(command):
        yield from _commands((*words, name), child)


def _children(command: Any) -> list[tuple[str, Any]]:
    found = getattr(command, "commands", {}).items()
    return sorted((name, child) for name, child in found if not child.hidden)


def _help(command: Any) -> str:
    return re.sub(r"\[/?\w+\]", "", (command.help or command.short_help or "").strip())


def _paragraphs(text: str) -> Iterator[str]:
    for position, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        if position:
            yield ".PP"
        yield _text(" ".join(paragraph.split()))


def _text(text: str) -> str:
    """Escape the characters that roff interprets."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped)
