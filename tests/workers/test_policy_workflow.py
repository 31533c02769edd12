"""The periodic task of the policy workflow runs each of its parts."""

from __future__ import annotations

import pytest

from hetsched.contracts.api.golden import Expectation
from hetsched.policies.goldens import save_golden
from hetsched.policies.models import GoldenPlacement
from tests.builders import a_node
from tests.situations import ALICE, a_cluster
from workers.policy_workflow import tick

POD = """{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [
    {name: c, image: example.com/c, resources: {requests: {cpu: "4"}}}]}}"""


@pytest.mark.django_db
def test_tick_checks_golden_placements_again_after_node_changes() -> None:
    cluster = a_cluster(a_node("small").cpu(2), a_node("large").cpu(8))
    save_golden(
        "g", cluster=cluster, manifest=POD, expectation=Expectation(nodes=("large",)), policy_name="hetsched",
        actor=ALICE, reason="agreed",
    )  # fmt: skip
    assert GoldenPlacement.objects.get().state == "kept"
    a_cluster(a_node("small").cpu(2), a_node("large").cpu(2))
    tick()
    assert GoldenPlacement.objects.get().state == "broken"
