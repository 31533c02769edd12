"""`make test` distributes whole files, and the tests of an API server or a console as one unit, which starts first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import _place, work_unit

TESTS = Path(__file__).parents[2]


def test_tests_of_a_file_are_one_unit() -> None:
    assert work_unit("tests/system/test_races.py::test_one[a::b]") == "tests/system/test_races.py"


@pytest.mark.parametrize("folder", ["tests/kube", "tests/browser"])
def test_tests_that_share_a_server_are_one_unit(folder: str) -> None:
    units = {work_unit(f"{folder}/test_{name}.py::test_one") for name in ("one", "other")}
    assert units == {folder}


def test_long_tests_start_first() -> None:
    names = ("unit/isa/test_a.py", "system/test_a.py", "browser/test_a.py", "kube/test_a.py")
    assert sorted(names, key=lambda name: _place(TESTS / name)) == [names[3], names[2], names[1], names[0]]
