"""A binding that fails with an unexpected error has an unknown result; the others of its run are recorded."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.pods.binding import BindingOutcome, BindingRequest, BindingResult
from hetsched.scheduling import binding_cycle


def test_unexpected_error_has_an_unknown_result_and_keeps_the_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    # A claim that was created again with other requests than the decision used.
    def allocate(_: Any, request: BindingRequest, **__: Any) -> BindingOutcome | None:
        if request.name == "odd":
            raise KeyError("exactly")
        return None

    monkeypatch.setattr(binding_cycle, "allocate", allocate)
    monkeypatch.setattr(binding_cycle, "bind", lambda _, item, **__: BindingOutcome(item.pod_id, BindingResult.BOUND))
    pods = [
        BindingRequest(number, "default", name, f"u{number}", "n1") for number, name in enumerate(("p", "odd", "q"))
    ]
    outcomes = [binding_cycle.write(cast("Api", None), "live", request) for request in pods]
    assert [outcome.result for outcome in outcomes] == [BindingResult.BOUND, BindingResult.UNKNOWN, BindingResult.BOUND]
