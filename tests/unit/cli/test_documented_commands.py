"""Commands in the documentation are accepted by the program.

The first commands of the README work when pasted: their files exist, and its quick commands are run.
"""

import platform
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from hetsched.cli.kinds import kind_of
from hetsched.cli.main import app
from tests.unit.cli.calling import command_tree, run

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_DOTS = re.compile(r"\s?(…|\.\.\.)(?=\s|$)")  # and more of your own
_BLOCK = re.compile(r"(?:\s{4,}|\$ )(?:\$ )?((?:[A-Z_]+=\S+ )*hetsched [a-z].*)")


def commands(text: str) -> Iterator[str]:
    """Yield the commands of a page: those in blocks and `$(…)`, and those in code spans without all arguments."""
    for line in text.replace("\\\n", " ").splitlines():
        found = _BLOCK.match(line)
        if found:
            yield found[1]
        else:
            yield from re.findall(r"\$\((hetsched [a-z][^)]*)\)", line)
            yield from (f"{mentioned} …" for mentioned in re.findall(r"`(hetsched [a-z][^`]*)`", line))


FOUND = sorted(
    {(str(page.relative_to(ROOT)), line) for page in PAGES for line in commands(page.read_text(encoding="utf-8"))}
)


def parsed(line: str) -> Any:
    """Return the context in which the program would run this line."""
    words = shlex.split(re.sub(r"[\[\])]|<\(", "", _DOTS.sub("", line)), comments=True)
    words = ["10" if word in ("N", "M") else word for word in words[words.index("hetsched") + 1 :]]
    ends = [at for at, word in enumerate(words) if word in ("|", ">", "&&", ";", "2>")]
    words = words[: ends[0]] if ends else words
    if words[0] == "agent":  # it parses its own options
        return None
    context = command_tree(app).make_context("hetsched", words)
    while getattr(context.command, "commands", None) and (context._protected_args or context.args):
        name, inner, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        if not rest and getattr(inner, "commands", None):
            return None  # a group is named, as in "see hetsched policy"
        context = inner.make_context(name, rest, parent=context, resilient_parsing=not rest)
    return context


def test_documentation_contains_commands() -> None:
    assert len(FOUND) > 60


@pytest.mark.parametrize(("page", "line"), FOUND, ids=[f"{page}: {line}" for page, line in FOUND])
def test_documented_command_is_accepted(page: str, line: str) -> None:
    try:
        context = parsed(line)
    except typer.BadParameter as refused:
        missing = type(refused).__name__ == "MissingParameter" and line.endswith("…")
        if missing or re.search(r"'[A-Z]+' is not one of", str(refused)):
            return
        raise
    if context is not None and context.command.name == "get" and context.params.get("kind"):
        kind_of(context.params["kind"])


def test_files_named_in_the_readme_exist() -> None:
    named = [word for page, line in FOUND if page == "README.md" for word in line.split() if word.endswith(".yaml")]
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_first_commands_of_the_readme_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    first = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Use a server")[0]
    quick = [line for line in commands(first) if re.match(r"hetsched (isa|whatif|check|simulate|look) ", line)]
    assert len(quick) == 5
    for line in quick:
        answer = run(*shlex.split(line)[1:])
        # The checked job is for x86-64; another machine's own programs do not match it.
        expected = 12 if "--artefact" in line and platform.machine() != "x86_64" else 0
        assert answer.exit_code == expected, (line, answer.output)
