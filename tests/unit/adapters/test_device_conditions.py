"""Binding conditions in the status of a claim: ready, waiting, failed, and the timeout."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hetsched.adapters.objects.devices.binding_conditions import (
    BINDING_TIMEOUT,
    BindingState,
    check_conditions,
    timestamp,
)

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
ID = {"driver": "gpu.example.com", "pool": "fabric", "device": "gpu-0"}
CONDITIONS = {"bindingConditions": ["Attached", "Tested"], "bindingFailureConditions": ["Broken"]}


def conditions(**status: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": value, "message": f"{kind} is {value}"} for kind, value in status.items()]


def claim(*results: dict[str, Any], devices: Any = (), age: timedelta | None = None) -> dict[str, Any]:
    allocation: dict[str, Any] = {"devices": {"results": list(results)}}
    if age is not None:
        allocation["allocationTimestamp"] = timestamp(NOW - age)
    return {"metadata": {"name": "c"}, "status": {"allocation": allocation, "devices": list(devices)}}


@pytest.mark.parametrize(
    ("reported", "state", "text"),
    [
        ({}, BindingState.WAITING, "gpu.example.com/fabric/gpu-0 of claim c does not report Attached yet"),
        ({"Attached": "True"}, BindingState.WAITING, "does not report Tested yet"),
        ({"Attached": "True", "Tested": "False"}, BindingState.WAITING, "does not report Tested yet"),
        ({"Attached": "True", "Tested": "True"}, BindingState.READY, ""),
        ({"Attached": "True", "Tested": "True", "Broken": "False"}, BindingState.READY, ""),
        ({"Attached": "True", "Tested": "True", "Broken": "True"}, BindingState.FAILED, "Broken: Broken is True"),
    ],
)
def test_state_follows_the_conditions_of_the_device(reported: dict[str, str], state: BindingState, text: str) -> None:
    found = check_conditions(claim({**ID, **CONDITIONS}, devices=[{**ID, "conditions": conditions(**reported)}]), NOW)
    assert found.state is state
    assert text in str(found.message or "")


def test_devices_without_binding_conditions_are_ready() -> None:
    assert check_conditions(claim(ID, age=timedelta(days=1)), NOW).state is BindingState.READY


def test_one_failed_device_precedes_a_waiting_one() -> None:
    other = {**ID, "device": "gpu-1"}
    status = {**other, "conditions": conditions(Broken="True")}
    found = check_conditions(claim({**ID, **CONDITIONS}, {**other, **CONDITIONS}, devices=[status]), NOW)
    assert found.state is BindingState.FAILED


def test_conditions_of_other_shares_are_ignored() -> None:
    mine, other = {**ID, "shareID": "a"}, {**ID, "shareID": "b"}
    status = {**other, "conditions": conditions(Attached="True", Tested="True")}
    assert check_conditions(claim({**mine, **CONDITIONS}, devices=[status]), NOW).state is BindingState.WAITING
    assert check_conditions(claim({**other, **CONDITIONS}, devices=[status]), NOW).state is BindingState.READY


def test_wait_ends_at_the_timeout() -> None:
    late = timedelta(seconds=1)
    waiting = claim({**ID, **CONDITIONS}, age=BINDING_TIMEOUT - late)
    assert check_conditions(waiting, NOW).state is BindingState.WAITING
    found = check_conditions(claim({**ID, **CONDITIONS}, age=BINDING_TIMEOUT + late), NOW)
    assert found.state is BindingState.FAILED
    assert "within 10 minutes" in str(found.message)
    done = {**ID, "conditions": conditions(Attached="True", Tested="True")}
    ready = claim({**ID, **CONDITIONS}, devices=[done], age=BINDING_TIMEOUT + late)
    assert check_conditions(ready, NOW).state is BindingState.READY
