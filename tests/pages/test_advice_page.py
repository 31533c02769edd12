"""The advice page: a plan with gain and cost, buttons for operators only, confirmed plans and their progress."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable

import pytest
from django.test import Client

from hetsched.inventory.models import Cluster
from hetsched.placement.models import Rebalance
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed, recorded, refusing, submitted

from .reading import main_of
from .test_balance_page import words

MANIFEST = "apiVersion: v1\nkind: Pod\nmetadata: {name: new}\nspec: {containers: [{name: m, image: i, resources: {requests: {cpu: '4'}}}]}"  # noqa: E501


@pytest.fixture
def tight(db: None) -> Cluster:
    """Return a cluster where a has 5 - 4 = 1 CPU left and b 4 - 1 = 3: for 4, right has to move from b to a."""
    cluster = a_cluster(a_node("a").cpu(5), a_node("b").cpu(4))
    placed(cluster, "a", a_pod("left").cpu(4))
    placed(cluster, "b", a_pod("right").cpu(1))
    return cluster


def asked(client: Client, **query: str) -> str:
    return client.get("/advice/", {"look": "1", **query}).content.decode()


def button(page: str) -> dict[str, str]:
    """Return the attributes of the page's first button with an effect."""
    found = re.search(r"<button[^>]*data-act[^>]*>", main_of(page))
    assert found is not None
    return {name: html.unescape(value) for name, value in re.findall(r'data-([a-z]+)="([^"]*)"', found.group())}


def test_plan_shows_gain_and_cost(viewer: Client, tight: Cluster) -> None:
    page = asked(viewer, goal="room", manifest=MANIFEST)
    assert "After 1 move, there is enough capacity on b." in page
    assert "default/right" in page
    assert "no plan needs fewer moves" in page
    assert [page.count(label) for label in ("Lost run time", "Pods not recreated by a controller")] == [1, 1]
    assert "data-act" not in main_of(page)
    assert "Only an operator can confirm a plan." in page


def test_confirm_button_sends_the_request_and_the_plan_etag(browsing: Callable[..., Client], tight: Cluster) -> None:
    operator = browsing("operator")
    press = button(asked(operator, goal="room", manifest=MANIFEST))
    assert press["act"] == "/api/v1/clusters/fleet/rebalances/"
    body = {**json.loads(press["body"]), "reason": "make room"}
    headers = {"If-Match": press["etag"]}
    answer = operator.post(press["act"], json.dumps(body), content_type="application/json", headers=headers)
    assert answer.status_code == 202, answer.content
    text = words(operator, "/advice/")
    assert "Confirmed plans in progress Capacity · 0 of 1 pods moved" in text
    assert "Stop…" in text
    assert words(operator, "/advice/?look=1&goal=balance&target=0.5").count("No moves needed") == 1


def dialog_rows(page: str, name: str) -> list[tuple[str, ...]]:
    """Return the cells of the table in a confirmation."""
    (shown,) = re.findall(rf'<template id="{name}">(.*?)</template>', page, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", shown.partition("<tbody>")[2])
    return [tuple(re.findall(r"<td[^>]*>(.*?)</td>", row)) for row in rows]


def test_confirmation_lists_every_pod_with_source_and_target(browsing: Callable[..., Client], db: None) -> None:
    cluster = a_cluster(*(a_node(name).cpu(4).labelled(pool="x") for name in "ab"), a_node("c").cpu(8))
    for name in "ab":
        placed(cluster, name, a_pod(f"on-{name}").cpu(4))
    template = "spec: {parallelism: 2, template: {spec: {nodeSelector: {pool: x}, restartPolicy: Never, containers"
    manifest = MANIFEST.replace("v1\nkind: Pod", "batch/v1\nkind: Job").replace("spec: {containers", template) + "}}"
    page = asked(browsing("operator"), goal="room", manifest=manifest)
    press = button(page)
    rows = dialog_rows(page, press["more"])
    assert sorted(rows) == [("1", "default/on-a", "a", "c"), ("2", "default/on-b", "b", "c")]
    assert dialog_rows(page, f"{press['more']}-2") == [rows[1]]


def test_pending_workload_can_be_selected(viewer: Client, tight: Cluster) -> None:
    workload = submitted(tight, a_pod("new").cpu(4), name="big")
    recorded(tight, refusing(tight))
    assert f'<option value="{workload.pk}"' in viewer.get("/advice/?goal=room").content.decode()
    assert "After 1 move, there is enough capacity on b." in asked(viewer, goal="room", workload=workload.pk)


def test_error_of_a_question_is_shown_in_place(viewer: Client, tight: Cluster) -> None:
    assert "Enter a number." in asked(viewer, goal="balance", target="much")
    assert "WorkloadEmpty" in asked(viewer, goal="room")
    bounds = "The balance target must be between 0 and 1, and the maximum number of moves between 1 and 100."
    assert bounds in asked(viewer, goal="balance", target="3")
    assert bounds in asked(viewer, goal="balance", most="0")


def test_missing_plan_has_its_obstacles(viewer: Client, tight: Cluster) -> None:
    page = asked(viewer, goal="room", manifest=MANIFEST.replace("'4'", "'5'"))
    assert "No useful plan: no set of moves within the limits frees enough capacity." in page
    assert "the pod would fit if one more pod could be moved off a (default/left)" in page


def test_empty_page_has_instructions(viewer: Client, tight: Cluster) -> None:
    assert "Select “Find moves”" in words(viewer, "/advice/")
    assert not Rebalance.objects.exists()
