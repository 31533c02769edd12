"""A server without the administration serves only the routes of the permission tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hetsched.project import web_server
from hetsched.project.connections import BoundedHttp
from tests.api.test_route_permissions import TABLE
from tests.pages.test_page_permissions import ADMIN, OPEN, PAGES
from tests.system.processes import ROOT

from .test_production_settings import PRODUCTION, run

SHOW = """
import django; django.setup()
import json
from django.urls import URLResolver, get_resolver
def routes(patterns, before=""):
    for pattern in patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver): yield from routes(pattern.url_patterns, route)
        else: yield route
print(json.dumps(sorted(set(routes(get_resolver().url_patterns)))))
"""
NOWHERE = {"^api/(?P<rest>.*)$", "^extender/(?P<rest>.*)$"}  # responds to missing addresses


def test_hardened_server_has_the_routes_of_the_tables(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", SHOW, HETSCHED_ADMIN="0", HETSCHED_HTTPS="on", **PRODUCTION)
    assert done.returncode == 0, done.stderr
    expected = (
        {route for route, _method in TABLE} | set(PAGES) | {route for route in OPEN if not route.startswith(ADMIN)}
    )
    assert set(json.loads(done.stdout)) == expected | NOWHERE


def test_provider_configuration_has_no_warnings(tmp_path: Path) -> None:
    provider = {
        "HETSCHED_OIDC_ISSUER": "https://id.example", "HETSCHED_OIDC_CLIENT_ID": "hetsched",
        "HETSCHED_OIDC_ROLES": "everyone=viewer", "HETSCHED_PASSWORDS": "0", "HETSCHED_ADMIN": "0",
    }  # fmt: skip
    words = ("manage.py", "check", "--deploy", "--fail-level", "WARNING")
    done = run(tmp_path, *words, HETSCHED_HTTPS="on", **PRODUCTION, **provider)
    assert done.returncode == 0, done.stderr
    half = run(tmp_path, *words, HETSCHED_HTTPS="on", **PRODUCTION, HETSCHED_OIDC_ISSUER="https://id.example")
    assert "hetsched.E004" in half.stderr
    no_passwords = run(tmp_path, *words, HETSCHED_HTTPS="on", **PRODUCTION, HETSCHED_PASSWORDS="0")
    assert "hetsched.E005" in no_passwords.stderr
    plain = run(tmp_path, *words, HETSCHED_HTTPS="on", **PRODUCTION, HETSCHED_OIDC_ISSUER="http://id.example")
    assert "is not an https address" in plain.stderr


def test_socket_frames_are_small_and_uncompressed() -> None:
    starts = (
        "Dockerfile",
        "docker-compose.yml",
        "deploy/helm/hetsched/templates/processes.yaml",
        "hetsched/cli/server/standalone.py",
    )
    for name in starts:
        text = re.sub(r"[\s\",=-]+", " ", (ROOT / name).read_text())
        commands = re.findall(r"( m|PythonModule\() hetsched\.project\.web_server ", text)
        assert len(commands) == 1, name
        assert "uvicorn" not in text, f"{name} starts web processes in another way"
    found = web_server.configuration("127.0.0.1", 8000, 10)
    assert (found.ws_max_size, found.ws_per_message_deflate) == (65536, False)
    assert found.limit_concurrency == 2000
    assert found.http is BoundedHttp
