"""pytest plugin that runs the collected tests against mutations, each in a fork of this process.

A fork takes milliseconds. A new process per mutation would have to import the product and create the test database,
which takes 14 s of processor time. Programs that a test starts run without the mutation.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from .live_code import replace_code
from .points import PROBE_MODULE, Mutation, with_probes

MOST_CASES = 12  # maximum per parametrised test
MOST_EXAMPLES = 10  # maximum per property test
_NOT_APPLICABLE = 2  # exit code
_OUTCOMES = {0: "survived", _NOT_APPLICABLE: "not applicable", None: "undecided"}
AT_A_TIME = 8  # number of tests of one file that are run in a row


class MutationCheck:
    """Test loop of the check. Results are written to a folder as JSON lines, from which a later run continues."""

    def __init__(self, root: Path, chosen: Sequence[Mutation], folder: Path, seconds: float, recording: float) -> None:
        self._root, self._chosen, self._seconds, self._recording = root, chosen, seconds, recording
        self._reached, self._results = folder / "reached.jsonl", folder / "results.jsonl"
        self._failure = folder / "failure.txt"  # contains the test that failed in the last fork
        self._failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = self._failed or report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in _reduced(session.items)}
        _start_database(session.items)
        code = fork(lambda: self._record(self._most_relevant_first(items.values())), self._recording)
        if code:
            sys.__stderr__.write(f"The run with probes ended early, with exit code {code}\n")
        reaching = self._reaching()
        known = {line["number"] for line in read_lines(self._results)}
        for number, mutation in enumerate(self._chosen):
            if number not in known:
                tests = [items[test] for test in reaching[number] if test in items]
                self._check(number, mutation, tests)
        return True

    def _record(self, items: Iterable[pytest.Item]) -> None:
        """Run tests with probes, and append the mutations that each of them reaches."""
        reached: set[int] = set()
        sys.modules[PROBE_MODULE] = SimpleNamespace(reached=reached.add)  # type: ignore[assignment]
        numbered = list(enumerate(self._chosen))
        for file in {mutation.file for mutation in self._chosen}:
            own = [one for one in numbered if one[1].file == file]
            replace_code(self._root, file, with_probes((self._root / file).read_bytes(), own))
        known = {line["test"] for line in read_lines(self._reached)}
        for item in _run(item for item in items if item.nodeid not in known):
            append_line(self._reached, {"test": item.nodeid, "passes": not self._failed, "reached": sorted(reached)})
            self._failed = ""
            reached.clear()

    def _most_relevant_first(self, items: Iterable[pytest.Item]) -> list[pytest.Item]:
        """Sort tests by how many of the mutated modules and functions their file names, alternating between files after
        a few tests.
        """
        names = {Path(mutation.file).stem for mutation in self._chosen} | {
            mutation.function for mutation in self._chosen if not mutation.function.startswith("__")
        }
        named = {path: len(names & set(re.findall(r"\w+", path.read_text()))) for path in {one.path for one in items}}
        places: Counter[Path] = Counter()
        keys = {}
        for item in items:
            keys[item] = places[item.path] // AT_A_TIME, -named[item.path], str(item.path)
            places[item.path] += 1
        return sorted(keys, key=keys.__getitem__)

    def _reaching(self) -> list[list[str]]:
        """Return, for each mutation, the passing tests that reach it; tests in files that reach few other mutations
        come first.
        """
        lines = [line for line in read_lines(self._reached) if line["passes"]]
        counts = defaultdict(list)
        for line in lines:
            counts[_file_of(line["test"])].append(len(line["reached"]))
        mean = {file: sum(numbers) / len(numbers) for file, numbers in counts.items()}
        lines.sort(key=lambda line: (mean[_file_of(line["test"])], _file_of(line["test"]), len(line["reached"])))
        return [[line["test"] for line in lines if n in line["reached"]] for n in range(len(self._chosen))]

    def _check(self, number: int, mutation: Mutation, items: Sequence[pytest.Item]) -> None:
        """Append the result of one mutation. A test that also fails without the mutation is ignored."""
        source = (self._root / mutation.file).read_bytes()
        start = time.monotonic()
        outcome, by, remaining = "not reached", "", list(items)
        while remaining:
            outcome, by = self._outcome(mutation, source, remaining)
            failed = [item for item in remaining if item.nodeid == by]
            if not failed or self._outcome(None, source, failed)[0] == "survived":
                break
            outcome, by, remaining = "not reached", "", [item for item in remaining if item not in failed]
        line = {
            "number": number, "outcome": outcome, "file": mutation.file, "line": mutation.line, "kind": mutation.kind,
            "before": source[mutation.start : mutation.end].decode(), "after": mutation.put, "by": by,
            "tests": len(remaining), "seconds": round(time.monotonic() - start, 1),
        }  # fmt: skip
        append_line(self._results, line)

    def _outcome(self, mutation: Mutation | None, source: bytes, items: Sequence[pytest.Item]) -> tuple[str, str]:
        """Run the tests until one fails; return the outcome and the failed test."""

        def run() -> None:
            if mutation is not None:
                try:
                    replace_code(self._root, mutation.file, mutation.apply(source))
                except ValueError:
                    os._exit(_NOT_APPLICABLE)
            for item in _run(items):
                if self._failed:
                    self._failure.write_text(item.nodeid)
                    os._exit(1)

        self._failure.unlink(missing_ok=True)
        code = fork(run, self._seconds)
        by = self._failure.read_text() if self._failure.exists() else ""
        return "caught" if by else _OUTCOMES.get(code, "failed"), by


def fork(function: Callable[[], None], seconds: float) -> int | None:
    """Run a function in a fork of this process; return its exit code, or None if it was killed after `seconds`."""
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setpgrp()
            function()
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _run(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Run the tests, and yield each of them after it has run."""
    rest = iter(items)
    item = next(rest, None)
    while item is not None:
        following = next(rest, None)
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        yield item
        item = following


def _start_database(items: Sequence[pytest.Item]) -> None:
    """Create the test database in this process by running one test. Pass a test of another folder as the next item, so
    that pytest keeps the database.
    """
    first = next((item for item in items if item.get_closest_marker("django_db")), None)
    if first is not None:
        other = next((item for item in items if item.path.parent != first.path.parent), None)
        first.ihook.pytest_runtest_protocol(item=first, nextitem=other)


def _reduced(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield at most `MOST_CASES` cases of each test, and limit property tests to `MOST_EXAMPLES` examples."""
    cases: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        cases[test] += 1
        if cases[test] <= MOST_CASES:
            stated = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)
            if stated is not None and stated.max_examples > MOST_EXAMPLES:
                function = getattr(item.obj, "__func__", item.obj)
                function._hypothesis_internal_use_settings = type(stated)(stated, max_examples=MOST_EXAMPLES)
            yield item


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of JSON lines, an empty list if the file does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Append a line of JSON to a file."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
