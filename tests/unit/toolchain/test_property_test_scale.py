"""`HETSCHED_TEST_EXAMPLES` multiplies the examples of every property test, also of those without a number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.conftest import scale_examples

drawn: list[int] = []


@settings(max_examples=3, database=None)
@given(st.integers())
def stated(number: int) -> None:
    drawn.append(number)


@given(st.integers())
def unstated(number: int) -> None:
    drawn.append(number)


class Machine(RuleBasedStateMachine):
    @rule()
    def step(self) -> None:
        return


Machine.TestCase.settings = settings(max_examples=4)


def item(test: Any, owner: Any = None) -> Any:
    return SimpleNamespace(obj=test, cls=owner)


def test_every_kind_of_property_test_draws_more() -> None:
    drawn.clear()
    stated()
    assert len(drawn) == 3
    machine = Machine.TestCase("runTest")
    # Parametrised items of one function are scaled once.
    some = [item(stated), item(stated), item(unstated), item(machine.runTest, Machine.TestCase), item(lambda: None)]
    scale_examples(some, 5)
    drawn.clear()
    stated()
    assert len(drawn) == 15
    drawn.clear()
    unstated()
    assert len(drawn) == 5 * settings().max_examples
    assert Machine.TestCase.settings.max_examples == 20
    scale_examples(some, 0.01)
    assert Machine.TestCase.settings.max_examples == 1
