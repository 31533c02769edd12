"""`hetsched cluster`: add, import, export, test."""

import json
from pathlib import Path
from typing import Any

from hetsched.adapters.files import parse_cluster
from tests.builders import a_node
from tests.unit.cli.answering import Server
from tests.unit.cli.calling import cluster_file, document, run

API = "/api/v1/clusters/"
LAB = {"name": "lab", "kind": "offline", "nodeCount": 2, "readyCount": 2}
READY = {
    "status": "ok",
    "components": {"database": {"ok": True, "detail": "sqlite"}, "scheduler": {"ok": True, "ageSeconds": 3.0}},
    "clusters": {"lab": {"syncAgeSeconds": 12.5}},
}


def test_add_names_kind_and_reason(server: Server) -> None:
    server.answers("POST", API, LAB, status=201)
    assert run("cluster", "add", "lab", "--reason", "for the tests").exit_code == 0
    assert server.body() == {"name": "lab", "kind": "offline", "reason": "for the tests"}


def test_import_replaces_only_the_seen_revision(server: Server, tmp_path: Path) -> None:
    server.answers("GET", f"{API}lab/", LAB, ETag='"7.3"')
    server.answers("POST", f"{API}lab/import/", LAB)
    file = cluster_file(tmp_path)
    assert run("cluster", "import", "lab", "-f", file).exit_code == 0
    sent = server.asked[-1]
    assert sent.headers["If-Match"] == '"7.3"'
    assert sent.url.params["reason"]
    assert sent.content == file.read_bytes()


def test_several_files_are_imported_as_one(server: Server, tmp_path: Path) -> None:
    server.answers("GET", f"{API}lab/", LAB, ETag='"1.1"')
    server.answers("POST", f"{API}lab/import/", LAB)
    trace = tmp_path / "nodes.csv"
    trace.write_text("sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0000,8000,16384,2,T4\n")
    run("cluster", "import", "lab", "-f", cluster_file(tmp_path, a_node("own")), "-f", trace)
    kinds = [
        item["metadata"]["name"] for item in json.loads(server.asked[-1].content)["items"] if item["kind"] == "Node"
    ]
    assert sorted(kinds) == ["openb-node-0000", "own"]


def test_export_writes_a_file_that_can_be_read(server: Server, tmp_path: Path) -> None:
    content = cluster_file(tmp_path).read_bytes()
    server.answers("GET", f"{API}lab/export/", content)
    out = tmp_path / "out.json"
    assert run("cluster", "export", "lab", "--out", out).exit_code == 0
    assert {node.name for node in parse_cluster([("out.json", out.read_bytes())]).nodes} == {"plain", "vector"}
    assert run("cluster", "export", "lab").stdout.encode() == content


def test_export_is_anonymised_on_request(server: Server) -> None:
    server.answers("GET", f"{API}lab/export/", b"{}")
    assert run("cluster", "export", "lab", "--anonymise").exit_code == 0
    assert dict(server.asked[-1].url.params) == {"reason": "exported by command", "anonymise": "true"}
    run("cluster", "export", "lab")
    assert "anonymise" not in server.asked[-1].url.params


def test_failed_export_leaves_no_file(server: Server, tmp_path: Path) -> None:
    server.refuses("GET", f"{API}lab/export/", 404, "NotFound", "there is no cluster 'lab'")
    assert run("cluster", "export", "lab", "--out", tmp_path / "out.json").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_test_names_every_part(server: Server) -> None:
    server.answers("GET", "/healthz", {"status": "ok"})
    server.answers("GET", "/readyz", READY)
    server.answers("GET", f"{API}lab/", LAB)
    result = run("cluster", "test", "lab", "-o", "json")
    assert result.exit_code == 0
    assert [found["check"] for found in document(result)["checks"]] == [
        "server", "database", "scheduler", "right to view", "inventory",
    ]  # fmt: skip


def test_test_names_a_source_that_does_not_answer(server: Server) -> None:
    server.answers("GET", "/healthz", {"status": "ok"})
    server.answers("GET", "/readyz", READY)
    server.answers("GET", f"{API}lab/", LAB)
    server.answers("GET", f"{API}lab/collectors/", {"items": [{"name": "load"}], "next": None})
    silent = {"check": "source load", "ok": False, "detail": "prometheus:9090 does not answer [HostUnreachable]"}
    server.answers("POST", f"{API}lab/test/", {"cluster": "lab", "ok": False, "checks": [silent]})
    result = run("cluster", "test", "lab", "-o", "json")
    assert result.exit_code == 1
    assert silent in document(result)["checks"]


def test_cluster_test_names_missing_permission_and_failed_component(server: Server) -> None:
    down: dict[str, Any] = {**READY, "status": "unready", "components": {"database": {"ok": False, "detail": "gone"}}}
    server.answers("GET", "/healthz", {"status": "ok"})
    server.answers("GET", "/readyz", down, status=503)
    server.refuses("GET", f"{API}lab/", 403, "PermissionDenied", "the request needs the right 'view'")
    result = run("cluster", "test", "lab")
    assert result.exit_code == 1
    assert "gone" in result.stdout
    assert "the request needs the right 'view'" in result.stdout
