"""Error pages and documents have a message, the request ID and the format of the client."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from hetsched.inventory.models import Cluster
from web.pages import shell

from .reading import main_of


def test_unknown_path_shows_an_error_page(viewer: Client, db: None) -> None:
    answer = viewer.get("/nowhere/")
    page = answer.content.decode()
    assert answer.status_code == 404
    assert "This page does not exist." in page
    assert answer["X-Request-ID"] in page
    assert "nowhere" not in main_of(page)


def test_not_found_page_of_a_viewer_has_links(viewer: Client, browsing: Callable[..., Client]) -> None:
    for address in ("/nowhere/", "/workloads/w-0/", "/tokens/"):
        answer = viewer.get(address)
        assert answer.status_code in (403, 404)
        page = answer.content.decode()
        assert '<nav class="places"' in page, address
        assert 'href="/nodes/"' in page
        assert 'href="/tokens/"' not in page  # not one of their places
    for other in (browsing(), Client()):
        assert '<nav class="places"' not in other.get("/nowhere/").content.decode()


def test_unknown_node_page_links_to_similar_names_and_all_nodes(viewer: Client, cluster: Cluster) -> None:
    answer = viewer.get("/nodes/n11/?cluster=" + cluster.name)
    page = main_of(answer.content.decode())
    assert answer.status_code == 404
    assert f"Node n11 does not exist in cluster {cluster.name}." in page
    assert f'href="/nodes/n1/?cluster={cluster.name}">n1</a>' in page
    assert f'href="/nodes/?cluster={cluster.name}">Nodes of {cluster.name}</a>' in page
    assert "/nodes/n" not in main_of(viewer.get("/nodes/unlike-all/").content.decode())


def test_favicon_is_served_at_its_default_path(db: None) -> None:
    answer = Client().get("/favicon.ico")
    assert (answer.status_code, answer["Location"]) == (302, "/static/img/mark.svg")


def test_wrong_password_keeps_the_user_name_and_focuses_the_password(db: None) -> None:
    page = Client().post("/login/", {"username": 'ada"<b>', "password": "wrong"}).content.decode()
    assert 'value="ada&quot;&lt;b&gt;" required>' in page
    assert 'autocomplete="current-password" required autofocus>' in page
    assert "wrong" not in main_of(page)
    assert 'value="" required autofocus>' in Client().get("/login/").content.decode()


def test_unknown_api_path_returns_a_problem_document(viewer: Client, db: None) -> None:
    answer = viewer.get("/api/v1/nowhere/")
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")


def test_internal_error_page_needs_no_database(
    viewer: Client, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the secret detail")

    monkeypatch.setattr(shell, "subject_of", fail)
    with django_assert_num_queries(2):  # session and user, before the view failed
        answer = viewer.get("/")
    page = answer.content.decode()
    assert answer.status_code == 500
    assert "Internal error" in page
    assert answer["X-Request-ID"] in page
    assert "secret detail" not in page


def test_expired_form_is_explained(db: None) -> None:
    answer = Client(enforce_csrf_checks=True).post("/login/", {"username": "a", "password": "b"})
    assert answer.status_code == 403
    assert "Form expired" in answer.content.decode()


def test_every_page_forbids_inline_code(viewer: Client, cluster: Cluster) -> None:
    policy = viewer.get("/")["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "unsafe" not in policy
    script = re.compile(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)")
    for address in ("/", "/nodes/n1/", "/what-if/", "/policies/", "/nowhere/"):
        page = viewer.get(address).content.decode()
        assert not script.search(page), address
        assert not re.search(r"\sstyle=|\son[a-z]+=", page), address
