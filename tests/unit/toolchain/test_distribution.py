"""`make test` distributes whole files, and the tests of an API server or a console as one unit, which starts first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import start_order, work_unit

TESTS = Path(__file__).parents[2]


def test_tests_of_a_file_are_one_unit() -> None:
    assert work_unit("tests/system/test_races.py::test_one[a::b]") == "tests/system/test_races.py"


@pytest.mark.parametrize("folder", ["tests/kube", "tests/browser"])
def test_tests_that_share_a_server_are_one_unit(folder: str) -> None:
    units = {work_unit(f"{folder}/test_{name}.py::test_one") for name in ("one", "other")}
    assert units == {folder}


def test_shared_folders_start_first_and_waiting_files_are_spread() -> None:
    names = [f"unit/isa/test_{number}.py" for number in range(4)]
    names += ["system/test_a.py", "system/test_b.py", "browser/test_a.py", "kube/test_a.py"]
    order = [str(file.relative_to(TESTS)) for file in start_order(TESTS / name for name in names)]
    # Positions: the other files at 0, 0.25, 0.5 and 0.75, the waiting files at 0 and 0.8 / 2 = 0.4.
    assert order == [
        "kube/test_a.py", "browser/test_a.py", "system/test_a.py", "unit/isa/test_3.py", "unit/isa/test_2.py",
        "system/test_b.py", "unit/isa/test_1.py", "unit/isa/test_0.py",
    ]  # fmt: skip
