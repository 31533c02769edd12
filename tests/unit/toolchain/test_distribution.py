"""`make test` distributes whole files, and the tests of the API server as one unit."""

from __future__ import annotations

from tests.conftest import work_unit


def test_tests_of_a_file_are_one_unit() -> None:
    assert work_unit("tests/system/test_races.py::test_one[a::b]") == "tests/system/test_races.py"


def test_tests_of_the_api_server_are_one_unit() -> None:
    units = {work_unit(f"tests/kube/test_{name}.py::test_one") for name in ("informer", "reflector")}
    assert units == {"tests/kube"}
