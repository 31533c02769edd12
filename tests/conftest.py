"""Configuration of all tests: the `needs` marker, its summary at the end, and the hypothesis profiles."""

import gc
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django import conf
from django.utils import translation
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests import fault_table, parts
from tests.calls_outside import (  # noqa: F401 - fixtures of every test
    _calls_outside_are_watched,
    _no_call_inside_a_transaction,
)

# Deadlines would measure the machine, not the code. CI always draws the same examples, while a developer's runs draw
# new ones.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if parts.in_ci() else "developer")
# Factor for the number of examples of each property test; `python3 dev.py properties` sets 20.
EXAMPLES = float(os.environ.get("HETSCHED_TEST_EXAMPLES", "0.5"))


@pytest.fixture(autouse=True)
def _reset_process_state() -> Iterator[None]:
    """Clear process-wide state: the thread's language, and caches by IDs that the next test reuses after a rollback.

    Restore the log handlers, because a command that calls `django.setup()` replaces them by handlers that write to its
    test's stderr.
    """
    handlers = logging.root.handlers[:]
    yield
    logging.root.handlers[:] = handlers
    translation.deactivate()
    cache, queue, counting, effects, quotas = (
        sys.modules.get(f"hetsched.placement.{name}")
        for name in ("scheduler_cache", "scheduling_queue.active_queue", "queries.pod_counts", "due_effects", "quotas")
    )
    if cache is not None:
        cache._caches.clear()
    if quotas is not None:
        quotas._last_counts.clear()
    if effects is not None:
        effects._committed.clear()
    if queue is not None:
        queue._orders.clear()  # the next row gets the ID of a rolled-back row, and so its position in the order
    code = sys.modules.get("hetsched.scheduling.machine_code")
    if code is not None:
        code.machine_code.is_loaded = False  # a test that runs an informer process loads it if it is in the cache
    rates = sys.modules.get("web.api.rates")
    if rates is not None:
        rates.reads.clear()  # all anonymous requests of the tests come from one address
    if counting is None:
        return
    counting._rates.clear()
    if counting._everywhere:  # set for the whole process by the first request to a server's own ASGI handler
        for module, name in _OF_A_SERVER:
            getattr(sys.modules[module], name).clear()
        pytest.fail("a server's threads would run during all later tests: make `handler._begin` do nothing")


@pytest.fixture(autouse=True, scope="session")
def _static_files_on_request() -> None:
    """Look up static files on request; without a manifest each test client would scan all of them."""
    conf.settings.WHITENOISE_AUTOREFRESH = True


@pytest.fixture(autouse=True, scope="session")
def _no_machine_code() -> None:
    """Keep this process from loading the compiled loop after some thousand pods, in the middle of any later test."""
    conf.settings.HETSCHED_COMPILE_AFTER_PODS = 1_000_000_000


_OF_A_SERVER = (
    ("hetsched.journal.publish", "_background"),
    ("hetsched.placement.dispatch", "_background"),
    ("hetsched.placement.queries.pod_counts", "_everywhere"),
)


_figures: dict[str, object] = {}
_faults: list[fault_table.Faults] = []

# The tests of a folder that share an API server or a console run on one xdist worker, from the start.
_TESTS = Path(__file__).parent
_SHARED = ("tests/kube", "tests/browser")
# Tests that mostly wait for other programs. They are spread over the run, because several of them at the same time
# leave the processors idle and then overload them.
_WAITING = frozenset(_TESTS / name for name in ("system", "agent"))
_WAITING_FILES = frozenset({"test_bench_command.py"})


@pytest.hookimpl(trylast=True)  # after other plugins have shuffled the order
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for part in _parts_needed(item):
            if part not in parts.PROGRAMS:
                raise pytest.UsageError(f"{item.nodeid}: no part named {part!r}; tests/parts.py declares them")
    twice = [nodeid for nodeid, count in Counter(item.nodeid for item in items).items() if count > 1]
    if twice:
        raise pytest.UsageError(f"{twice[0]}: several tests have this ID, and xdist would run only one of them")
    position = {file: position for position, file in enumerate(start_order(dict.fromkeys(item.path for item in items)))}
    items.sort(key=lambda item: position[item.path])
    if EXAMPLES != 1:
        scale_examples(items, EXAMPLES)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude modules and tests from garbage collection; they live until the end of the run."""
    gc.freeze()


def start_order(files: Iterable[Path]) -> list[Path]:
    """Return the order in which test files start: shared folders, then waiting files spread over the other files."""
    groups: dict[str, list[Path]] = {"shared": [], "waiting": [], "other": []}
    for file in files:
        waits = file.parent in _WAITING or file.name in _WAITING_FILES
        groups["shared" if _folder(file) in _SHARED else "waiting" if waits else "other"].append(file)
    # The last waiting file starts after 80 % of the other files, so that no worker runs it alone at the end.
    due = {file: 0.8 * position / len(groups["waiting"]) for position, file in enumerate(groups["waiting"])}
    # tests/workers and tests/unit contain the longest of the others, so the order is reversed.
    due |= {file: position / len(groups["other"]) for position, file in enumerate(reversed(groups["other"]))}
    return sorted(groups["shared"], key=lambda file: _SHARED.index(_folder(file))) + sorted(due, key=due.__getitem__)


def _folder(file: Path) -> str:
    return f"tests/{file.parent.name}" if file.parent.parent == _TESTS else ""


def scale_examples(items: Iterable[pytest.Item], factor: float) -> None:
    """Multiply the number of examples of property tests by `factor`; items of one function share their settings."""
    for owner, name in {_settings_of(item) for item in items} - {None}:
        stated: settings = getattr(owner, name)
        setattr(owner, name, settings(stated, max_examples=max(1, round(stated.max_examples * factor))))


def _settings_of(item: pytest.Item) -> Any:
    """Return the owner and the attribute name of a property test's settings; None for other tests."""
    test = getattr(item, "obj", None)
    function = getattr(test, "__func__", test)
    if hasattr(function, "_hypothesis_state_machine_class"):
        return item.cls, "settings"  # type: ignore[attr-defined]
    # hypothesis has no public API to change the settings of a test later
    attribute = "_hypothesis_internal_use_settings"
    return (function, attribute) if hasattr(function, attribute) else None


class ProgramScheduling(LoadFileScheduling):
    """Send all tests of a file to one xdist worker, and all tests of a folder that share an API server or a console."""

    def _split_scope(self, nodeid: str) -> str:
        return work_unit(nodeid)


def work_unit(nodeid: str) -> str:
    """Return the name of the group of tests that run on the same worker as this test."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in _SHARED if file.startswith(f"{folder}/")), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return ProgramScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture
def figures() -> dict[str, object]:
    """Return the dict of measured values that the summary at the end shows."""
    return _figures


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> fault_table.Faults:
    """Return the counts of the faults of this test, for the table at the end."""
    _faults.append(fault_table.Faults(request.node.nodeid))
    return _faults[-1]


@pytest.hookimpl(tryfirst=True)  # runs before the fixtures, which may start missing programs
def pytest_runtest_setup(item: pytest.Item) -> None:
    for part in _parts_needed(item):
        parts.require(part)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the measured values of one xdist worker to the controller; fail the run if a fault was counted."""
    if not fault_table.is_clean(_faults) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["figures"] = {name: str(figure) for name, figure in _figures.items()}
        output["faults"] = msgspec.to_builtins(_faults)
        output["skipped"] = dict(parts.skipped)
        output["forbidden"] = dict(parts.forbidden)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", {})
    _figures.update(output.get("figures", {}))
    _faults.extend(msgspec.convert(output.get("faults", []), list[fault_table.Faults]))
    parts.skipped.update(output.get("skipped", {}))
    parts.forbidden.update(output.get("forbidden", {}))


class _ImmediateFailureReport:
    """Report failures immediately, so that an aborted run of half an hour has already reported its failures."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)  # runs after the reporter has printed the result letter
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message.partition("\n")[0] if crash else "see the end of this run"
            self._reporter.write_line(f"\nFAILED {report.nodeid} ({report.when}): {reason}", red=True)


@pytest.hookimpl(trylast=True)  # runs when the reporter already exists
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if parts.in_ci() and reporter is not None:
        config.pluginmanager.register(_ImmediateFailureReport(reporter))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        found
        for name in ("passed", "failed", "error", "skipped")
        for found in terminalreporter.stats.get(name, [])
        if isinstance(found, pytest.TestReport)  # an error of the collection has another report
    ]
    if table := fault_table.lines(_faults, reports):
        terminalreporter.section("faults")
        for line in table:
            terminalreporter.write_line(line)
    if _figures:
        terminalreporter.section("figures")
        for name, figure in _figures.items():
            terminalreporter.write_line(f"  {name}: {figure}")
    if parts.forbidden:
        terminalreporter.section("NOT TESTED HERE: the kernel forbids it", sep="!", yellow=True, bold=True)
        for check, count in sorted(parts.forbidden.items()):
            terminalreporter.write_line(f"  {check}; {count} test(s) skipped")
    if not parts.skipped:
        return
    terminalreporter.section("NOT TESTED HERE: outside programs are missing", sep="!", yellow=True, bold=True)
    for part, count in sorted(parts.skipped.items()):
        terminalreporter.write_line(f"  {part}: {count} test(s) skipped; {parts.advice(part)}")


def _parts_needed(item: pytest.Item) -> list[str]:
    return [part for mark in item.iter_markers("needs") for part in mark.args]
