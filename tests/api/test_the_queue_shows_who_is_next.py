"""`GET queue/`: places in the order of the cluster's default policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.contracts.policy import PluginUse, PolicySpec
from hetsched.placement.models import Pod
from hetsched.policies.actions import activate, save_draft
from tests.builders import a_pod
from tests.scenes import ALICE, submitted

from .conftest import Api


@pytest.fixture
def waiting(cluster: Any) -> Any:
    """Have three pods of one namespace wait, then a gang of two and one urgent pod of another."""
    submitted(cluster, *(a_pod(f"flood-{number}", "flood") for number in range(3)))
    submitted(cluster, a_pod("g-0", "team").gang("g", 2), a_pod("g-1", "team").gang("g", 2))
    submitted(cluster, a_pod("urgent", "team").priority(5))
    return cluster


def ordered_by(name: str) -> None:
    spec = PolicySpec("hetsched", (PluginUse(name), PluginUse("resource-fit")))
    activate("hetsched", save_draft(spec, actor=ALICE).version, actor=ALICE, reason="order")


def test_places_follow_priority_then_submission(waiting: Any, operator: Api) -> None:
    places = operator.get("queue/")["items"]
    assert [(place["position"], place["pod"]) for place in places] == [
        (1, "team/urgent"), (2, "flood/flood-0"), (3, "flood/flood-1"), (4, "flood/flood-2"),
        (5, "team/g-0"), (6, "team/g-1"),
    ]  # fmt: skip
    assert (places[4]["gang"], places[0]["gang"], places[0]["priority"]) == ("team/g", None, 5)


def test_places_follow_the_policy(waiting: Any, operator: Api) -> None:
    ordered_by("fair-share")
    pods = [place["pod"] for place in operator.get("queue/?limit=4")["items"]]
    # Nobody uses anything. The urgent pod first; then flood, whose share of 0 is below that of team.
    assert pods == ["team/urgent", "flood/flood-0", "flood/flood-1", "team/g-0"]


def test_what_waits_for_its_back_off_has_no_place(waiting: Any, operator: Api) -> None:
    Pod.objects.filter(name__startswith="flood").update(queued=False)
    assert len(operator.get("queue/")["items"]) == 3


def test_a_limited_token_sees_its_own_pods_at_their_true_places(waiting: Any, api: Callable[..., Api]) -> None:
    places = api("viewer", "team").get("queue/")["items"]
    assert [(place["position"], place["pod"]) for place in places] == [
        (1, "team/urgent"), (5, "team/g-0"), (6, "team/g-1"),
    ]  # fmt: skip
