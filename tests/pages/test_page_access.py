"""A page requires a login, and a role that may read it."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest
from django.test import Client

from hetsched.inventory.models import Cluster
from hetsched.placement.models import Decision
from tests.builders import a_pod
from tests.situations import placed

ADDRESSES = (
    "/", "/nodes/", "/nodes/n1/", "/nodes/n1/gpu/", "/workloads/", "/workloads/{workload}/", "/decisions/",
    "/decisions/{decision}/", "/what-if/", "/why/{pod}/", "/policies/", "/policies/hetsched/", "/advice/",
    "/advice/?look=1", "/queue/", "/clusters/", "/audit/", "/balance/", "/shadow/", "/search/", "/sessions/",
)  # fmt: skip


@pytest.fixture
def addresses(cluster: Cluster) -> list[str]:
    pod = placed(cluster, "n1", a_pod("p"))[0]
    decision = Decision.objects.get(pod=pod).pk
    return [address.format(workload=pod.workload_id, decision=decision, pod=pod.pk) for address in ADDRESSES]


def test_anonymous_user_is_redirected_to_login_and_back(addresses: list[str]) -> None:
    for address in addresses:
        answer = Client().get(address)
        assert (answer.status_code, answer["Location"]) == (302, f"/login/?next={quote(address)}")


def test_viewer_can_read_every_page(viewer: Client, addresses: list[str]) -> None:
    for address in addresses:
        answer = viewer.get(address)
        assert answer.status_code == 200, address
        assert "no-cache" in answer["Cache-Control"]
        assert "private" in answer["Cache-Control"]


@pytest.mark.parametrize("groups", [(), ("agent",)])
def test_account_without_the_right_gets_an_explanation(
    browsing: Callable[..., Client], addresses: list[str], groups: tuple[str, ...]
) -> None:
    client = browsing(*groups)
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code == 403, address
        assert "Ask an administrator" in answer.content.decode()


def test_pages_accept_only_get_and_head(viewer: Client, addresses: list[str]) -> None:
    for address in addresses:
        assert viewer.post(address).status_code == 405, address
