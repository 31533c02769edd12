"""The menu links to every page that the user may see, and to no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import get_resolver

from hetsched.access.roles import Action
from hetsched.inventory.models import Cluster
from web.pages import shell


def test_sections_have_unique_keys() -> None:
    keys = [key for _section, key, *_rest in shell.PLACES]
    assert len(set(keys)) == len(keys)
    assert "g" not in keys  # starts a key sequence


def test_menu_links_to_all_sections(viewer: Client, cluster: Cluster) -> None:
    page = viewer.get("/nodes/").content.decode()
    routes = get_resolver().reverse_dict
    open_to_all = [
        key for section, key, _label, _group, action in shell.PLACES if section in routes and action == "view"
    ]
    assert [key for key in open_to_all if f'data-key="{key}"' not in page] == []
    assert page.count('aria-current="page"') == 2  # in the bar and in the menu


def test_section_outside_the_bar_is_named_in_the_bar(viewer: Client, cluster: Cluster) -> None:
    assert '<span class="when-wide">Balance</span>' in viewer.get("/balance/").content.decode()


def test_forbidden_places_are_not_listed(
    browsing: Callable[..., Client], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [(*place[:4], Action.ADMIN) if place[0] == "balance" else place for place in shell.PLACES]
    monkeypatch.setattr(shell, "PLACES", (*places, ("no-such-route", "z", "Nowhere", "see", Action.VIEW)))
    page = browsing("operator").get("/nodes/").content.decode()
    assert 'data-key="n"' in page
    assert 'data-key="b"' not in page
    assert "Nowhere" not in page
    assert 'data-key="b"' in browsing("viewer", is_superuser=True).get("/nodes/").content.decode()
