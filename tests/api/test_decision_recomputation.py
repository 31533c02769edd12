"""`decisions/{id}/again/`: recomputation with the policy of the decision, and with another one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.test_what_if_endpoint import no_writes

from .conftest import Api


def again(operator: Api, verdict: str, query: str = "") -> Any:
    (row,) = operator.get("decisions/", verdict=verdict)["items"]
    with no_writes():
        return operator("GET", f"decisions/{row['id']}/again/{query}", status=200).json()


@pytest.mark.parametrize("verdict", ["placed", "never-fits"])
def test_original_policy_reproduces_the_decision(operator: Api, decided: str, verdict: str) -> None:
    found = again(operator, verdict)
    assert (found["same"], found["samePolicy"], found["differences"]) == (True, True, [])
    assert found["verdict"] == verdict


def test_other_policy_is_returned_with_its_differences(operator: Api, decided: str) -> None:
    found = again(operator, "placed", "?policy=random")
    assert (found["samePolicy"], found["policy"]["name"]) == (False, "random")
    assert found["same"] == (not found["differences"])
    assert {part["what"] for part in found["differences"]} <= {"node", "score", "allocation"}


def test_unknown_policy_and_expired_state_are_reported(operator: Api, decided: str) -> None:
    (row,) = operator.get("decisions/", verdict="placed")["items"]
    address = f"decisions/{row['id']}/again/"
    assert operator("GET", f"{address}?policy=absent", status=400).json()["code"] == "PolicyUnknown"
    assert operator("GET", f"{address}?policy=random&version=99", status=400).json()["code"] == "PolicyUnknown"
    operator("POST", "nodes/n2/actions/", {"action": "cordon", "reason": "x"}, if_match="*", status=200)
    problem = operator("GET", address, status=410).json()
    assert problem["code"] == "DecisionExpired"
    assert row["summary"] in problem["detail"]
    operator("GET", "decisions/99999/again/", status=404)
