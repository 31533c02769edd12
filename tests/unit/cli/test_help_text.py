"""Help texts with working examples, and suggestions for misspelled arguments."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from hetsched.cli.examples import EXAMPLES
from hetsched.cli.kinds import KINDS, kind_of
from hetsched.cli.main import app
from hetsched.contracts.errors import InputError
from tests.unit.cli.calling import run

LINES = [(command, line) for command, lines in EXAMPLES.items() for line in lines]
OWN_OPTIONS = {"agent", "docs", "certs"}  # the agent parses its own options; the other commands need no example


def program() -> Any:
    return typer.main.get_command(app)


def words_of(line: str) -> list[str]:
    """Return the words after `hetsched` up to the end of the command in a shell's line."""
    words = shlex.split(line.replace("<(", "").replace(")", ""))
    found = words[words.index("hetsched") + 1 :]
    ends = [at for at, word in enumerate(found) if word in ("|", ">")]
    return found[: ends[0]] if ends else found


def test_every_command_has_examples() -> None:
    assert set(program().commands) - OWN_OPTIONS == set(EXAMPLES)


@pytest.mark.parametrize(("command", "line"), LINES)
def test_examples_are_parsed_unchanged(command: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HETSCHED_SERVER", raising=False)
    words = words_of(line)
    assert words[0] in EXAMPLES
    context = program().make_context("hetsched", words)
    while getattr(context.command, "commands", None):
        name, inner, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        context = inner.make_context(name, rest, parent=context)
    if "kind" in context.params and command == "get":
        kind_of(context.params["kind"])


@pytest.mark.parametrize("command", ["submit", "wait", "get", "explain", "cancel"])
def test_help_ends_with_examples(command: str) -> None:
    text = run(command, "--help", env={"COLUMNS": "100", "TERM": "dumb"}).stdout
    assert "Examples" in text
    assert EXAMPLES[command][0] in text


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["submitt"], "submit"),
        (["wait", "w-1", "--for", "runing"], "running"),
        (["get", "decisons"], "decisions"),
        (["submit", "--filname", "x"], "--filename"),
        (["completion", "bahs"], "bash"),
    ],
)
def test_misspelled_word_gets_a_suggestion(words: list[str], meant: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert re.search(rf"(Did you mean|Possible options:)[^\n]*{meant}", result.stderr), result.stderr


def commands_of(group: Any, *names: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            yield from commands_of(command, *names, name)
        else:
            yield " ".join((*names, name)), command


# These write files, run indefinitely, or print output for other programs.
WITHOUT_JSON = {
    "agent", "certs", "cluster export", "completion", "crds", "docs", "health", "mcp", "policy golden export",
    "scheduler", "standalone",
}  # fmt: skip


def test_every_command_with_output_has_json_output() -> None:
    options = {
        name: {option for param in command.params for option in param.opts} for name, command in commands_of(program())
    }
    assert {name for name, known in options.items() if "--output" not in known} == WITHOUT_JSON


def test_names_of_object_kinds_are_unique() -> None:
    names = [name for kind in KINDS for name in (kind.name, *kind.also)]
    assert len(names) == len(set(names))
    assert all(kind_of(name.upper()).name for name in names)
    with pytest.raises(InputError, match="Known: clusters"):
        kind_of("zzz")
