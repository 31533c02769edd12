"""`make mutations`: apply single random mutations to functions of the product, and count the mutations that a test
detects.

The tests run once with probes at the chosen places, for at most `--recording` seconds, and record which of them reach
each place. Then each mutation is applied alone, in a fork, and the tests that reach it run until one fails. A test that
takes longer than `--test-seconds` fails. A later run with the same options and folder continues.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from .plugin import MutationCheck, read_lines
from .points import Mutation, mutations

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODULES = ("hetsched/engine/framework", "hetsched/placement/actions", "hetsched/scheduling", "hetsched/storage")
TESTS = ("tests/unit/engine", "tests/apps", "tests/workers", "tests/live", "tests/api", "tests/pages")
NOTICED = ("caught", "failed")
# The package is imported under another name, because in the tree of another commit `tests` is the package of that
# commit.
_START = (
    "import sys; sys.path.insert(0, {parent!r}); import mutations.run as run; del sys.path[0]; sys.exit(run.check())"
)


def main() -> int:
    """Run the check in a process with the Python interpreter and the folder of the tree, and print the results."""
    options = _options(sys.argv[1:])
    options.results.mkdir(parents=True, exist_ok=True)
    start = [options.python, "-c", _START.format(parent=str(HERE.parent)), *sys.argv[1:]]
    results = ["--results", str(options.results.resolve())]
    subprocess.run([*start, *results], cwd=options.tree, env=os.environ | {"PYTHONPATH": str(options.tree)}, check=True)
    lines = read_lines(options.results / "results.jsonl")
    for line in lines:
        text = "{number:3} {outcome:12} {file}:{line} {kind}: {before!r} -> {after!r} ({tests} tests, {seconds} s) {by}"
        sys.stdout.write(text.format(**line) + "\n")
    counts = Counter(line["outcome"] for line in lines)
    noticed = sum(counts[outcome] for outcome in NOTICED)
    sys.stdout.write(f"{noticed} of {len(lines)} mutations are noticed ({dict(counts)})\n")
    return 0


def check() -> int:
    """Run the check in this process, which runs in the folder of the tree."""
    options = _options(sys.argv[1:])
    root = Path.cwd()
    chosen = choose(root, options.modules or MODULES, options.number, options.seed)
    plugin = MutationCheck(root, chosen, options.results, options.seconds, options.recording)
    switches = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--tb=no"]
    code = pytest.main([*switches, f"--timeout={options.test_seconds:g}", *(options.tests or TESTS)], plugins=[plugin])
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED) else 1


def choose(root: Path, modules: Sequence[str], number: int, seed: int) -> list[Mutation]:
    """Return random mutations in these folders and files; with the same seed, a smaller number returns the first of a
    larger number.
    """
    paths = [path for name in modules for path in sorted((root / name).rglob("*.py")) or [root / name]]
    files = [str(path.relative_to(root)) for path in paths]
    found = [mutation for file in files for mutation in mutations(file, (root / file).read_bytes())]
    random.Random(seed).shuffle(found)
    return found[:number]


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    reader = argparse.ArgumentParser(prog="make mutations", description=__doc__)
    reader.add_argument("modules", nargs="*", help=f"folders and files to change: {' '.join(MODULES)}")
    reader.add_argument("--number", type=int, default=60, help="number of mutations")
    reader.add_argument("--seed", type=int, default=1, help="seed of their choice")
    reader.add_argument("--seconds", type=float, default=300, help="limit for the tests of one mutation")
    reader.add_argument("--test-seconds", type=float, default=60, help="limit for one test")
    reader.add_argument("--recording", type=float, default=3600, help="limit for the run with probes")
    reader.add_argument("--tests", nargs="*", help=f"folders of the tests: {' '.join(TESTS)}")
    reader.add_argument("--tree", type=Path, default=ROOT, help="working tree to check")
    reader.add_argument("--python", default=sys.executable, help="Python with the packages of that tree")
    reader.add_argument("--results", type=Path, default=ROOT / "build" / "mutations", help="folder of the results")
    return reader.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
