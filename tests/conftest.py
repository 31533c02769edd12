"""What every test shares: the `needs` marker, its closing summary, and how hypothesis searches."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import translation
from hypothesis import settings

from tests import parts
from tests.calls_outside import (  # noqa: F401 - fixtures of every test
    _calls_outside_are_watched,
    _no_transaction_is_open_while_somebody_is_called,
)

# Deadlines measure the machine, not the code. CI draws the same examples every time; a developer's runs keep searching.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if parts.in_ci() else "developer")


@pytest.fixture(autouse=True)
def _nothing_is_left_in_this_process() -> Iterator[None]:
    """A request leaves its language to its thread, and a rolled-back cluster's state to the next one of its id."""
    yield
    translation.deactivate()
    snapshot, counting = (sys.modules.get(f"hetsched.placement.{name}") for name in ("snapshot", "counting"))
    if snapshot is not None:
        snapshot._warm.clear()
    if counting is None:
        return
    counting._paces.clear()
    if counting._everywhere:  # what the first request to a server's own ASGI handler sets for the rest of its process
        for module, name in _OF_A_SERVER:
            getattr(sys.modules[module], name).clear()
        pytest.fail("threads of a server would tell things beside every later test: have `handler._begin` do nothing")


_OF_A_SERVER = (
    ("hetsched.journal.publish", "_background"),
    ("hetsched.placement.dispatch", "_background"),
    ("hetsched.placement.pod_counts", "_everywhere"),
)


_figures: dict[str, object] = {}

# What starts programs and waits for them goes first, so that no lane is left alone with it at the end.
_LONG = frozenset(Path(__file__).with_name(name) for name in ("kube", "system", "agent", "browser"))


@pytest.hookimpl(trylast=True)  # after the order was shuffled
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for part in _parts_needed(item):
            if part not in parts.PROGRAMS:
                raise pytest.UsageError(f"{item.nodeid}: no part named {part!r}; tests/parts.py declares them")
    items.sort(key=lambda item: item.path.parent not in _LONG)


@pytest.fixture
def figures() -> dict[str, object]:
    """Return where a test notes what it measured, shown at the end of the run."""
    return _figures


@pytest.hookimpl(tryfirst=True)  # before the fixtures, which may start what is missing
def pytest_runtest_setup(item: pytest.Item) -> None:
    for part in _parts_needed(item):
        parts.require(part)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what one lane noted to whoever tells the end of all of them."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["figures"] = {name: str(figure) for name, figure in _figures.items()}
        output["skipped"] = dict(parts.skipped)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", {})
    _figures.update(output.get("figures", {}))
    parts.skipped.update(output.get("skipped", {}))


class _ToldAtOnce:
    """A run of half an hour says what failed when it fails, so that one which is ended early has said it too."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)  # after its letter
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message.partition("\n")[0] if crash else "see the end of this run"
            self._reporter.write_line(f"\nFAILED {report.nodeid} ({report.when}): {reason}", red=True)


@pytest.hookimpl(trylast=True)  # the reporter is made by then
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if parts.in_ci() and reporter is not None:
        config.pluginmanager.register(_ToldAtOnce(reporter))


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
