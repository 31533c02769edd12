"""Permissions of every address outside REST for every user, from one table; a page without a row fails.

The rows of REST are in `tests/api/test_route_permissions.py`, those of sockets in `tests/live`, those of the extender
in `tests/workers/extender`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from hetsched.access.roles import Role
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Decision
from tests.builders import a_pod
from tests.situations import placed
from web.api.routes import urlpatterns as rest

LOOK = {"viewer", "submitter", "operator", "policy-admin", "root"}
SUBMIT = {"submitter", "operator", "root"}
ROOT = {"root"}
ALL_CALLERS = {"anonymous", "without role", "agent", *LOOK}

# Route -> users that see the page. Anonymous users are redirected to the login, all others are refused.
PAGES: dict[str, set[str]] = {
    "^$": LOOK,
    "^nodes/$": LOOK,
    "^nodes/(?P<name>[^/\\x00]{1,253})/$": LOOK,
    "^nodes/(?P<name>[^/\\x00]{1,253})/(?P<tab>[a-z]{1,20})/$": LOOK,
    "^workloads/$": LOOK,
    "^workloads/(?P<pk>w-[0-9a-z]{1,38})/$": LOOK,
    "^workloads/(?P<pk>w-[0-9a-z]{1,38})/why/$": LOOK,
    "^why/(?P<pk>[0-9]{1,18})/$": LOOK,
    "^decisions/$": LOOK,
    "^decisions/(?P<pk>[0-9]{1,18})/$": LOOK,
    "^balance/$": LOOK,
    "^advice/$": LOOK,
    "^search/$": LOOK,
    "^shadow/$": LOOK,
    "^shadow/(?P<pk>[0-9]{1,18})/$": LOOK,
    "^queue/$": LOOK,
    "^holds/$": LOOK,
    "^holds/(?P<pk>h-[0-9a-z]{1,38})/$": LOOK,
    "^sessions/$": LOOK,
    "^tokens/$": ROOT,
    "^webhooks/$": SUBMIT,
    "^deliveries/(?P<pk>d-[0-9a-z]{1,38})/$": SUBMIT,
    "^clusters/$": LOOK,
    "^audit/$": LOOK,
    "^what-if/$": LOOK,
    "^policies/$": LOOK,
    "^policies/(?P<name>[a-z0-9-]{1,63})/$": LOOK,
}
# Addresses without authentication, with their methods.
OPEN = {
    "login/": {"GET", "POST"}, "logout/": {"POST"}, "admin/login/": {"GET"},
    "i18n/setlang/": {"GET", "POST", "PUT", "PATCH", "DELETE"},  # redirects back; a POST chooses the language
    "favicon.ico": {"GET"},
}  # fmt: skip
ADMIN = "admin/"


def routes(patterns: list[Any], before: str = "") -> Iterator[str]:
    for pattern in patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            yield route


ROUTES = set(routes(get_resolver().url_patterns)) - set(routes(rest))


def address_of(route: str, pod: Any) -> str:
    """Fill a route in with existing objects."""
    decision = Decision.objects.get(pod=pod).pk
    names = {
        "(?P<name>[^/\\x00]{1,253})": "n1", "(?P<tab>[a-z]{1,20})": "gpu", "(?P<name>[a-z0-9-]{1,63})": "hetsched",
        "(?P<pk>w-[0-9a-z]{1,38})": pod.workload_id,
        "(?P<pk>[0-9]{1,18})": str(decision if route.startswith("^decisions") else pod.pk),
        "(?P<pk>d-[0-9a-z]{1,38})": "d-1", "(?P<pk>h-[0-9a-z]{1,38})": "h-1",
        "(?P<language>[a-z-]{2,12})": "en", "(?P<digest>[0-9a-f]{8})": "0" * 8,
        "\\.": ".", "<path:object_id>": "1", "<id>": "1", "<path:name>": "1", "<int:content_type_id>": "1",
    }  # fmt: skip
    for pattern, name in names.items():
        route = route.replace(pattern, name)
    return "/" + route.strip("^$")


@pytest.fixture
def pod(cluster: Cluster) -> Any:
    return placed(cluster, "n1", a_pod("p"))[0]


@pytest.fixture
def people(browsing: Callable[..., Client]) -> dict[str, Client]:
    """Return a browser for each kind of user."""
    roles = {role.value: browsing(role.value) for role in Role}
    root = browsing(is_superuser=True, is_staff=True)
    return {"anonymous": Client(), "without role": browsing(), "root": root, **roles}


def test_permission_table_has_exactly_the_pages() -> None:
    assert {route for route in ROUTES if not route.startswith(ADMIN)} | {"admin/login/"} == set(PAGES) | set(OPEN)


def test_permission_table_matches_responses(people: dict[str, Client], pod: Any) -> None:
    for route, who in PAGES.items():
        address = address_of(route, pod)
        for name, client in people.items():
            answer = client.get(address)
            if name in who:
                # The object may be missing; there is no redirect to a login and no refusal.
                assert answer.status_code in (200, 302, 404), (name, address)
                assert "login" not in answer.headers.get("Location", ""), (name, address)
            elif name == "anonymous":
                assert (answer.status_code, answer["Location"].partition("?")[0]) == (302, "/login/"), address
            else:
                assert answer.status_code == 403, (name, address)
        for method in ("post", "put", "patch", "delete"):
            assert getattr(people["root"], method)(address).status_code == 405, (method, address)


def test_public_pages_accept_their_methods_and_no_others(db: Any) -> None:
    for route, methods in OPEN.items():
        for method in ("GET", "PUT", "PATCH", "DELETE"):
            status = Client().generic(method, f"/{route}").status_code
            assert (status == 405) is (method not in methods), (route, method, status)


def test_administration_requires_an_administrator(people: dict[str, Client], pod: Any) -> None:
    for route in sorted(route for route in ROUTES if route.startswith(ADMIN) and route not in OPEN):
        if route.endswith(("(?P<url>.*)$", "logout/", "jsi18n/")):
            continue
        address = address_of(route, pod)
        for name, client in people.items():
            answer = client.get(address)
            if name == "root":
                # Some pages are only read, or reject a call without its form; none redirects to the login.
                assert answer.status_code in (200, 302, 400, 403, 404, 405), (address, answer.status_code)
                assert "login" not in answer.headers.get("Location", ""), address
            else:
                assert (answer.status_code, answer["Location"].partition("?")[0]) == (302, "/admin/login/"), address


def test_non_administrator_gets_an_error_instead_of_a_redirect_loop(people: dict[str, Client]) -> None:
    assert people["viewer"].get("/admin/", follow=True).status_code == 403


def test_admin_is_empty_without_its_permissions(browsing: Callable[..., Client], pod: Any) -> None:
    staff = browsing("operator", is_staff=True)
    for route in sorted(
        route for route in ROUTES if route.startswith(ADMIN) and route.endswith(("add/", "changelist/"))
    ):
        assert staff.get(address_of(route, pod)).status_code == 403, route
    for model in ("access/token", "auth/user", "auth/group", "policies/policy", "inventory/cluster"):
        assert staff.get(f"/admin/{model}/").status_code == 403, model
