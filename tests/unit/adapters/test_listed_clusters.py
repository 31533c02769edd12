"""Reading a cluster from paginated lists, as `hetsched look` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hetsched.adapters.kubernetes import api as calls
from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.adapters.look.dumped_cluster import parse_dump
from hetsched.adapters.look.live_cluster import observe_cluster
from hetsched.adapters.look.user_kubeconfig import open_api
from hetsched.contracts.api.cluster_report import ClusterObservation
from tests.seeded_clusters import KINDS, Plain, node, pod, seeded_cluster

from .api_server import ListServer, serving


def client(server: ListServer, folder: Path) -> Api:
    path = folder / "config"
    path.write_text(json.dumps(server.kubeconfig({"token": "t"})))
    return open_api([path])


def from_file(objects: list[Plain]) -> ClusterObservation:
    return parse_dump([("c.json", json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode())])


@pytest.mark.parametrize("kind", KINDS)
def test_lists_and_files_give_the_same_content(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PAGE", 3)
    objects = seeded_cluster(kind, 2, faults=True).objects
    with serving(objects) as server:
        live = observe_cluster(client(server, tmp_path))
    stored = from_file(objects)
    assert {pod.key for pod in live.content.running} == {pod.key for pod in stored.content.running}
    assert live.content.pending == stored.content.pending
    assert [one.refusal for one in live.rejected] == [one.refusal for one in stored.rejected]
    by_name = {report.name: report for report in live.content.nodes}
    assert {name: (one.isa, one.gpus, one.numa, one.problems) for name, one in by_name.items()} == {
        one.name: (one.isa, one.gpus, one.numa, one.problems) for one in stored.content.nodes
    }
    assert (live.quarantined, live.unchecked) == ((), ())


def test_only_lists_are_requested_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PAGE", 2)
    with serving([node(f"n{number}") for number in range(5)]) as server:
        assert len(observe_cluster(client(server, tmp_path)).content.nodes) == 5
    assert {(call.method, call.authorization) for call in server.calls} == {("GET", "Bearer t")}
    assert not any("watch" in call.query or "secrets" in call.path for call in server.calls)
    nodes = [call.query for call in server.calls if call.path == NODES.path()]
    assert nodes == [{"limit": ["2"]}, {"limit": ["2"], "continue": ["2"]}, {"limit": ["2"], "continue": ["4"]}]


def test_expired_list_is_restarted_without_deleted_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PAGE", 2)
    with serving([pod(f"p{number}") for number in range(4)]) as server:
        server.expired.add(PODS.path())
        serve = server.answer

        def answer(call: object) -> tuple[int, Plain]:
            status, body = serve(call)  # type: ignore[arg-type]
            if status == 410:
                del server.lists[PODS.path()][0]
            return status, body

        monkeypatch.setattr(server, "answer", answer)
        found = observe_cluster(client(server, tmp_path)).content.pending
    assert [one.name for one in found] == ["p1", "p2", "p3"]


def test_forbidden_kind_is_not_checked_and_missing_kind_is_skipped(tmp_path: Path) -> None:
    with serving([node("n")]) as server:
        server.denied = {"/apis/storage.k8s.io/v1/csinodes": 403, "/apis/policy/v1/poddisruptionbudgets": 404}
        found = observe_cluster(client(server, tmp_path))
    assert [(part.part, part.reason) for part in found.unchecked] == [
        ("csinodes.storage.k8s.io", "the user may not list this kind")
    ]
    assert [one.name for one in found.content.nodes] == ["n"]


@pytest.mark.parametrize(("path", "status"), [(NODES.path(), 403), (PODS.path(), 403), ("/api/v1/namespaces", 500)])
def test_required_kind_and_failing_server_are_errors(tmp_path: Path, path: str, status: int) -> None:
    with serving([node("n")]) as server:
        server.denied = {path: status}
        with pytest.raises(ApiFailure) as failure:
            observe_cluster(client(server, tmp_path))
    assert failure.value.status == status


def test_unreadable_object_is_quarantined(tmp_path: Path) -> None:
    broken = pod("broken", cpu="many")
    with serving([node("n"), broken, pod("fine")]) as server:
        found = observe_cluster(client(server, tmp_path))
    assert [(one.kind, one.name) for one in found.quarantined] == [("pods", "default/broken")]
    assert [one.name for one in found.content.pending] == ["fine"]


def test_client_cannot_write(tmp_path: Path) -> None:
    with serving([]) as server:
        api = client(server, tmp_path)
        with pytest.raises(ApiFailure, match="shadow"):
            api.send("DELETE", NODES.path(name="n"))
    assert server.calls == []
