"""`hetsched cluster add|connect|test` for a live cluster: sends one context, and prints missing permissions."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.adapters.kubeconfigs import kubeconfig
from tests.unit.cli.answering import Server
from tests.unit.cli.calling import document, run

API = "/api/v1/clusters/"
LIVE = {"name": "live", "kind": "kubernetes", "nodeCount": 2, "readyCount": 2}
READY = {"status": "ok", "components": {}, "clusters": {"live": {"syncAgeSeconds": 2.0}}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a kubeconfig file with a second context, whose credentials must not be sent."""
    config = kubeconfig()
    config["contexts"].append({"name": "two", "context": {"cluster": "lab", "user": "root"}})
    config["users"].append({"name": "root", "user": {"token": "secret-of-another"}})
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    return path


def test_only_the_chosen_context_is_sent(server: Server, file: Path) -> None:
    server.answers("POST", API, LIVE, status=201)
    assert run("cluster", "add", "live", "--kubeconfig", file, "--namespace", "team").exit_code == 0
    sent = server.body()
    assert (sent["kind"], sent["namespaces"]) == ("kubernetes", ["team"])
    assert sent["kubeconfig"]["users"] == [{"name": "chosen", "user": {"token": "canary-5f2d"}}]
    run("cluster", "add", "live", "--kubeconfig", file, "--context", "two")
    assert server.body()["kubeconfig"]["users"] == [{"name": "chosen", "user": {"token": "secret-of-another"}}]


def test_in_cluster_sends_no_kubeconfig(server: Server) -> None:
    server.answers("POST", API, LIVE, status=201)
    assert run("cluster", "add", "live", "--in-cluster").exit_code == 0
    assert server.body() == {
        "name": "live", "kind": "kubernetes", "inCluster": True, "reason": "added by command",
    }  # fmt: skip


@pytest.mark.parametrize(
    "words", [["--kind", "kubernetes"], ["--kind", "demo", "--in-cluster"], ["--context", "two"], ["--namespace", "x"]]
)
def test_ambiguous_connection_is_not_sent(server: Server, words: list[str]) -> None:
    result = run("cluster", "add", "live", *words)
    assert (result.exit_code, server.asked) == (2, [])
    assert "ConnectionUnclear" in result.stderr


def test_hostile_kubeconfig_is_rejected_by_the_client(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps(kubeconfig(user={"exec": {"command": "sh"}})))
    result = run("cluster", "add", "live", "--kubeconfig", path)
    assert result.exit_code == 2
    assert "users.user.exec" in result.stderr
    assert run("cluster", "add", "live", "--kubeconfig", tmp_path / "none").exit_code == 2
    assert server.asked == []


@pytest.mark.parametrize(("word", "sent"), [("--read-pull-secrets", True), ("--no-read-pull-secrets", False)])
def test_pull_secrets_are_enabled_by_an_option(server: Server, word: str, sent: bool) -> None:
    server.answers("GET", f"{API}live/", LIVE, ETag='"1.2"')
    server.answers("PUT", f"{API}live/connection/", {"server": "api.example.org:6443"})
    assert run("cluster", "connect", "live", word).exit_code == 0
    assert server.body() == {"reason": "connected by command", "readPullSecrets": sent}


def test_discovery_kubeconfig_is_sent_with_the_other(server: Server, file: Path) -> None:
    server.answers("GET", f"{API}live/", LIVE, ETag='"1.2"')
    server.answers("PUT", f"{API}live/connection/", {"server": "api.example.org:6443"})
    assert run("cluster", "connect", "live", "--discovery-kubeconfig", file).exit_code == 0
    assert set(server.body()) == {"reason", "discoveryKubeconfig"}
    assert server.body()["discoveryKubeconfig"]["users"] == [{"name": "chosen", "user": {"token": "canary-5f2d"}}]


def test_connect_sends_the_etag_of_the_cluster(server: Server, file: Path) -> None:
    server.answers("GET", f"{API}live/", LIVE, ETag='"1.2"')
    server.answers("PUT", f"{API}live/connection/", {"server": "api.example.org:6443"})
    assert run("cluster", "connect", "live", "--kubeconfig", file).exit_code == 0
    assert server.asked[-1].headers["If-Match"] == '"1.2"'
    assert set(server.body()) == {"reason", "kubeconfig"}


def result_of_test(server: Server, *checks: dict[str, Any]) -> Any:
    server.answers("GET", "/healthz", {"status": "ok"})
    server.answers("GET", "/readyz", READY)
    server.answers("GET", f"{API}live/", LIVE)
    server.answers("POST", f"{API}live/test/", {"cluster": "live", "ok": False, "checks": list(checks)})
    return run("cluster", "test", "live", "-o", "json")


def test_missing_permissions_are_reported(server: Server) -> None:
    right = {"check": "right to create pods/binding", "ok": False, "detail": "required to bind"}
    result = result_of_test(server, {"check": "API server", "ok": True, "detail": "v1"}, right)
    assert result.exit_code == 1
    assert right in document(result)["checks"]


def test_successful_connection_test_exits_with_0(server: Server) -> None:
    assert result_of_test(server, {"check": "API server", "ok": True, "detail": "v1"}).exit_code == 0


def test_user_without_the_right_to_test_gets_an_error(server: Server) -> None:
    result_of_test(server)
    server.refuses("POST", f"{API}live/test/", 403, "PermissionDenied", "the request needs the right 'operate'")
    result = run("cluster", "test", "live")
    assert result.exit_code == 1
    assert "right to test" in result.stdout
