"""What every test shares: the `needs` marker, its closing summary, and how hypothesis searches."""

import sys
from collections.abc import Iterator

import pytest
from django.utils import translation
from hypothesis import settings

from tests import parts

# Deadlines measure the machine, not the code. CI draws the same examples every time; a developer's runs keep searching.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if parts.in_ci() else "developer")


@pytest.fixture(autouse=True)
def _nothing_is_left_in_this_process() -> Iterator[None]:
    """A request leaves its language to its thread, and a rolled-back cluster's state to the next one of its id."""
    yield
    translation.deactivate()
    snapshot = sys.modules.get("hetsched.placement.snapshot")
    if snapshot is not None:
        snapshot._warm.clear()


_figures: dict[str, object] = {}


@pytest.fixture
def figures() -> dict[str, object]:
    """Return where a test notes what it measured, shown at the end of the run."""
    return _figures


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for part in _parts_needed(item):
            if part not in parts.PROGRAMS:
                raise pytest.UsageError(f"{item.nodeid}: no part named {part!r}; tests/parts.py declares them")


@pytest.hookimpl(tryfirst=True)  # before the fixtures, which may start what is missing
def pytest_runtest_setup(item: pytest.Item) -> None:
    for part in _parts_needed(item):
        parts.require(part)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _figures:
        terminalreporter.section("figures")
        for name, figure in _figures.items():
            terminalreporter.write_line(f"  {name}: {figure}")
    if not parts.skipped:
        return
    terminalreporter.section("NOT TESTED HERE: outside programs are missing", sep="!", yellow=True, bold=True)
    for part, count in sorted(parts.skipped.items()):
        terminalreporter.write_line(f"  {part}: {count} test(s) skipped; {parts.advice(part)}")


def _parts_needed(item: pytest.Item) -> list[str]:
    return [part for mark in item.iter_markers("needs") for part in mark.args]
