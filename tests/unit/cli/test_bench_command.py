"""`hetsched bench --quick`: every scenario returns the contract's document and verifies its results."""

from functools import cache
from typing import Any

import pytest

from hetsched.cli.bench.command import Benchmark
from hetsched.lab.bench import engine
from hetsched.lab.bench.measure import Checks, Scenario
from tests.unit.cli.calling import document, run


@cache
def quick(scenario: str) -> dict[str, Any]:
    """Return the document of a scenario, which runs once."""
    result = run("bench", scenario, "--quick", "-o", "json")
    assert result.exit_code == 0
    return document(result)


# Scenarios with an API server or separate processes run where these exist.
@pytest.mark.parametrize("scenario", [one for one in Benchmark if one not in (Benchmark.CLUSTER, Benchmark.WATCH)])
def test_rows_machine_and_checks(scenario: Benchmark) -> None:
    found = quick(scenario.value)
    assert found["scenario"] == scenario.value
    assert {"cpu", "cores", "python", "numpy", "loadAverage"} <= set(found["machine"])
    for row in found["rows"]:
        assert {"case", "unit", "median", "p10", "p90", "n"} <= set(row)
        assert row["p10"] <= row["median"] <= row["p90"]
    assert found["checks"]["compared"] > 0
    assert found["checks"]["different"] == 0


def test_engine_scenario_has_its_cases() -> None:
    cases = [row["case"] for row in quick(Benchmark.ENGINE.value)["rows"]]
    for shapes in ("1 shape", "64 shapes", "all different"):
        assert any(case.startswith(shapes) for case in cases)
    sizes = f"at {engine.QUICK.scale[-1]} / {engine.QUICK.scale[-2]} nodes"
    assert {f"cost {sizes}", f"cost, compiled {sizes}"} <= set(cases)


def test_wrong_result_exits_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(**_options: object) -> Scenario:
        return Scenario("engine", (), {}, Checks(compared=3, different=1))

    monkeypatch.setattr(engine, "run", wrong)
    assert run("bench", "engine").exit_code == 1


def test_text_is_a_table_with_the_machine() -> None:
    text = run("bench", "isa", "--quick").stdout
    assert "one requirement" in text
    assert "0 different" in text
    assert "cores" in text
