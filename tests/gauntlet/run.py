"""`make gauntlet`: seed each known bug into a copy of the source and check that its test fails.

First all named tests run on the unchanged copy and must pass. Then each bug is seeded alone, and its test must run and
fail. Exit code 0: all bugs were detected.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.gauntlet.bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
PASSED, FAILED = 0, 1  # pytest's exit codes; with any other code no test ran


def main() -> int:
    """Run the gauntlet; return the exit code."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("names", nargs="*", help="only these bugs, as K7")
    wanted = reader.parse_args().names
    bugs = [bug for bug in BUGS if not wanted or bug.name in wanted]
    caught = 0
    with tempfile.TemporaryDirectory(prefix="hetsched-gauntlet-") as folder:
        copy = Path(folder)
        _copy(copy)
        sound = _test(copy, *dict.fromkeys(bug.test for bug in bugs))
        if sound.returncode != PASSED:
            sys.stdout.write(f"{sound.stdout[-4000:]}\nThe tests do not pass on the source as it is\n")
            return 1
        for bug in bugs:
            code = _with(copy, bug)
            outcome = {FAILED: "caught", PASSED: "NOT CAUGHT"}.get(code, f"NOT TESTED (exit code {code})")
            caught += code == FAILED
            sys.stdout.write(f"{bug.name:4} {outcome:10} {bug.what} ({bug.known}), by {bug.test}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{caught} of {len(bugs)} known bugs are caught, each by a named test\n")
    return 0 if caught == len(bugs) else 1


def _copy(folder: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def _with(copy: Path, bug: Bug) -> int:
    path = copy / bug.file
    sound = path.read_text()
    path.write_text(seeded(sound, bug))
    try:
        return _test(copy, bug.test).returncode
    finally:
        path.write_text(sound)


def seeded(source: str, bug: Bug) -> str:
    """Return the source with the bug.

    Raises: ValueError if its text is not found exactly once.
    """
    if source.count(bug.find) != 1:
        raise ValueError(f"{bug.name}: its place is found {source.count(bug.find)} times in {bug.file}")
    return source.replace(bug.find, bug.put)


def _test(copy: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    # The cache would hide a change made within the same second as the previous one.
    shutil.rmtree(copy / ".tools/bytecode", ignore_errors=True)
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
