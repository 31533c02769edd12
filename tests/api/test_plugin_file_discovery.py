"""One new file in the plugin folder adds the plugin to every interface of the product."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from hetsched.cli.docs import reference_pages
from hetsched.engine import plugins
from hetsched.engine.framework.registry import load_registry
from web.api.policies.plugins import registry

from .conftest import POD, Api

SOURCE = '''\
"""Prefer short names.

Rule: score = 100 - depth * letters, at least 0.
"""

from typing import Annotated

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.engine.framework.registry import plugin


class ShortNameParams(Params, frozen=True):
    depth: Annotated[float, msgspec.Meta(ge=0, le=9, title="Depth", description="Points per letter.")] = 2.0


@plugin("short-name", summary="Prefer nodes with short names.", params=ShortNameParams)
class ShortName:
    def score(self, request, nodes):
        return np.array([max(0.0, 100.0 - self.params.depth * len(name)) for name in nodes.names()])
'''


@pytest.fixture
def short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add a plugin file for the duration of a test."""
    (tmp_path / "short_name.py").write_text(SOURCE)
    monkeypatch.setattr(plugins, "__path__", [*plugins.__path__, str(tmp_path)])
    registry.cache_clear()
    yield
    registry.cache_clear()
    sys.modules.pop(f"{plugins.__name__}.short_name", None)


@pytest.mark.usefixtures("short_name")
def test_rest_describes_the_plugin(operator: Api) -> None:
    described = operator.get("plugins/short-name/")
    assert described["summary"] == "Prefer nodes with short names."
    assert described["params"]["properties"]["depth"]["maximum"] == 9


@pytest.mark.usefixtures("short_name")
def test_policy_form_has_the_plugin_parameters(client: Client, cluster: Any, settings: Any) -> None:
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": plain}
    client.force_login(User.objects.create_superuser("root", password="x"))
    page = client.get(reverse("admin:policies_policy_add")).content.decode()
    assert "Prefer nodes with short names." in page
    assert 'name="short-name.param.depth"' in page


@pytest.mark.usefixtures("short_name")
def test_what_if_scores_with_the_plugin(operator: Api, cluster: Any) -> None:
    draft = {"plugins": [{"name": "resource-fit"}, {"name": "short-name", "params": {"depth": 3}}]}
    body = {"manifest": POD, "policyDraft": draft, "explain": True}
    answer = operator("POST", "what-if/", body, status=200).json()
    # n1 has two letters: 100 - 3 * 2 = 94.
    assert answer["nodes"][0]["scores"] == [
        {"plugin": "short-name", "raw": 94.0, "normalized": 94.0, "weight": 1.0, "weighted": 94.0}
    ]


@pytest.mark.usefixtures("short_name")
def test_plugin_file_gets_a_documentation_page() -> None:
    page = reference_pages(load_registry())["reference/plugins/short-name.md"]
    assert "score = 100 - depth * letters" in page
    assert "| `depth` | `2.0` | number, 0 to 9 | Points per letter. |" in page


def test_plugin_is_unknown_without_its_file(api: Callable[..., Api]) -> None:
    assert api("viewer").client.get("/api/v1/plugins/short-name/").status_code == 404
