"""A late result of a binding does not release the devices of a later decision."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.pods.binding import BindingOutcome, BindingResult
from hetsched.adapters.objects import keys
from hetsched.scheduling import binding_cycle
from tests.unit.adapters.test_extended_claims import ApiServer, allocated, binding


@pytest.mark.parametrize("result", [BindingResult.GONE, BindingResult.LOST, BindingResult.UNKNOWN])
@pytest.mark.parametrize("current", [True, False])
def test_result_deletes_only_the_claim_of_its_decision(
    monkeypatch: pytest.MonkeyPatch, result: BindingResult, current: bool
) -> None:
    server = ApiServer()

    def bind(_: Any, request: Any, **__: Any) -> BindingOutcome:
        if not current:
            assert allocated(server, binding("gpu-1")) is None
        return BindingOutcome(request.pod_id, result)

    monkeypatch.setattr(binding_cycle, "bind", bind)
    assert binding_cycle.write(cast("Api", server), "live", binding("gpu-0")).result is result
    if current and result is not BindingResult.UNKNOWN:
        assert server.claim is None
    else:
        assert server.devices == ["gpu-0" if current else "gpu-1"]


def test_claim_of_a_pod_that_a_later_decision_bound_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later decision has the same device, which all nodes can access."""
    server = ApiServer()

    def bind(_: Any, request: Any, **__: Any) -> BindingOutcome:
        server.pod["metadata"]["annotations"] = {keys.ALLOCATION: "{}"}
        return BindingOutcome(request.pod_id, BindingResult.LOST)

    monkeypatch.setattr(binding_cycle, "bind", bind)
    binding_cycle.write(cast("Api", server), "live", binding())
    assert server.devices == ["gpu-0"]


def test_binding_after_its_lease_leaves_the_claim_of_a_later_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease ends while the volumes of the pod are provided."""
    server, leases = ApiServer(), [True]
    assert allocated(server, binding("gpu-1")) is None
    outcome = binding_cycle.write(
        cast("Api", server), "live", binding("gpu-0"), is_ours=lambda: bool(leases and leases.pop())
    )
    assert (outcome.result, server.devices) == (BindingResult.UNKNOWN, ["gpu-1"])
