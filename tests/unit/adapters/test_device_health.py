"""Health of the devices of a pod in the status of its containers."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.adapters.kubernetes.devices.health import unhealthy_devices
from hetsched.adapters.objects.fields import FieldView
from hetsched.contracts.objects.observed import DeviceHealth


def status(*devices: dict[str, Any], group: str = "containerStatuses") -> FieldView:
    reported = [{"name": "claim:gpu/r", "resources": list(devices)}]
    return FieldView({group: [{"name": "main", "allocatedResourcesStatus": reported}]})


@pytest.mark.parametrize("group", ["initContainerStatuses", "containerStatuses"])
def test_healthy_devices_are_left_out(group: str) -> None:
    found = status(
        {"resourceID": "d0", "health": "Healthy"},
        {"resourceID": "d1", "health": "Unhealthy", "message": "ECC errors"},
        group=group,
    )
    assert unhealthy_devices(found) == (DeviceHealth("main", "claim:gpu/r", "d1", "Unhealthy", "ECC errors"),)


@pytest.mark.parametrize("device", [{}, {"health": "Unknown"}, {"health": "Degraded"}])
def test_health_without_a_known_value_is_unknown(device: dict[str, str]) -> None:
    (found,) = unhealthy_devices(status({"resourceID": "d0", **device}))
    assert found.health == "Unknown"


def test_kubelet_without_reports_has_no_finding() -> None:
    assert unhealthy_devices(FieldView({"containerStatuses": [{"name": "main"}]})) == ()
    assert unhealthy_devices(FieldView({})) == ()


def test_number_of_reported_devices_is_limited() -> None:
    found = unhealthy_devices(status(*({"resourceID": f"d{i}"} for i in range(1000))))
    assert len(found) == 100
