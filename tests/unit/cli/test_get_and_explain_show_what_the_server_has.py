"""`hetsched get` and `explain`: pages are followed, tables for people, the server's own JSON for programs."""

from typing import Any

from tests.unit.cli.answering import Server
from tests.unit.cli.calling import document, run

API = "/api/v1"


def node(name: str) -> dict[str, Any]:
    facts = {"family": "riscv", "isa": "rv64gc", "pool": "", "ready": True, "cordoned": False}
    return {"name": name, **facts, "cpu": 0.60251, "memory": None, "gpu": None, "cards": 0, "pods": 3}


DECISION = {
    "id": 7,
    "pod": "default/web",
    "verdict": "placed",
    "summary": "default/web fits on n1",
    "reasons": [],
    "nodes": [
        {
            "name": "n1",
            "pod": "default/web",
            "feasible": True,
            "refused": None,
            "scores": [{"plugin": "least-allocated", "raw": 50.0, "normalized": 50.0, "weight": 1.0, "weighted": 50.0}],
            "total": 50.0,
            "rank": 1,
        }
    ],
}
REFUSED = {
    **DECISION,
    "id": 8,
    "verdict": "never-fits",
    "nodes": [],
    "reasons": [{"code": "IsaMissingExtension", "plugin": "isa-match", "nodes": 4, "message": "the node lacks v"}],
}


def test_pages_are_followed_up_to_the_limit(server: Server) -> None:
    pages = [
        {"items": [node("a"), node("b")], "next": f"{API}/nodes/?cursor=x"},
        {"items": [node("c"), node("d")], "next": None},
    ]
    server.answers("GET", f"{API}/nodes/", *pages)
    result = run("get", "nodes", "--limit", "3", "-o", "json")
    assert [item["name"] for item in document(result)["items"]] == ["a", "b", "c"]
    assert server.asked[0].url.params["limit"] == "3"
    assert server.asked[1].url.params["cursor"] == "x"


def test_a_table_writes_unknown_as_a_dash_and_ratios_short(server: Server) -> None:
    server.answers("GET", f"{API}/nodes/", {"items": [node("a")], "next": None})
    header, row = run("get", "nodes", "--cluster", "demo").stdout.splitlines()
    assert header.split()[:3] == ["name", "family", "isa"]
    assert row.split() == ["a", "riscv", "rv64gc", "-", "yes", "no", "0.6025", "-", "-", "0", "3"]
    assert server.asked[0].url.params["cluster"] == "demo"


def test_one_of_them_is_shown_whole(server: Server) -> None:
    server.answers("GET", f"{API}/policies/spread/", {"name": "spread", "activeVersion": 2, "spec": {"plugins": []}})
    text = run("get", "policies", "spread").stdout
    assert "activeVersion" in text
    assert '{"plugins":[]}' in text


def test_plugins_come_as_one_list(server: Server) -> None:
    plugin = {"name": "taints", "summary": "Taints.", "points": ["filter", "score"]}
    server.answers("GET", f"{API}/plugins/", {"items": [plugin], "next": None})
    assert "filter score" in run("get", "plugins").stdout
    assert not server.asked[0].url.query


def test_a_decision_is_explained_with_the_nodes_it_weighed(server: Server) -> None:
    server.answers("GET", f"{API}/decisions/7/", DECISION)
    result = run("explain", "7")
    assert result.exit_code == 0
    assert "default/web fits on n1" in result.stdout
    assert "least-allocated 50.00" in result.stdout


def test_a_refusal_is_explained_with_what_would_have_done(server: Server) -> None:
    fit = {
        "change": "cpu 9 -> 8",
        "field": "resources.requests.cpu",
        "from": "9",
        "to": "8",
        "nodes": ["n1"],
        "count": 5,
    }
    server.answers("GET", f"{API}/decisions/8/", {**REFUSED, "nearestFit": [fit], "tipping": None})
    text = run("explain", "8").stdout
    assert "nearest fit: cpu 9 -> 8  on n1 and 4 more  (resources.requests.cpu)" in text
    assert server.asked[0].url.params["nearestFit"] == "true"


def test_a_placement_is_explained_with_its_margin(server: Server) -> None:
    point = {"plugin": "taints", "weight": 3.0, "at": 1.5, "side": "below", "node": "n2"}
    margin = {"pod": "default/web", "node": "n1", "runnerUp": "n2", "margin": 4.25, "points": [point]}
    server.answers("GET", f"{API}/decisions/7/", {**DECISION, "nearestFit": [], "tipping": margin})
    text = run("explain", "7").stdout
    assert "n1 wins by 4.25 over n2" in text
    assert "n2 would win with taints below 1.5 (it weighs 3)" in text


def test_a_workload_is_explained_worst_pod_first_and_exits_as_that(server: Server) -> None:
    pods = [
        {"pod": "default/a", "state": "placed", "decision": 7},
        {"pod": "default/b", "state": "never-fits", "decision": 8},
        {"pod": "default/c", "state": "pending", "decision": None},
    ]
    server.answers("GET", f"{API}/workloads/w-1/", {"id": "w-1", "state": "never-fits", "pods": pods})
    server.answers("GET", f"{API}/decisions/7/", DECISION)
    server.answers("GET", f"{API}/decisions/8/", REFUSED)
    result = run("explain", "w-1", "-o", "json")
    assert result.exit_code == 11
    assert [decision["id"] for decision in document(result)["items"]] == [8, 7]


def test_a_large_workload_shows_its_worst_decisions_only(server: Server) -> None:
    pods = [{"pod": f"default/p{number}", "state": "placed", "decision": 7} for number in range(30)]
    pods.append({"pod": "default/last", "state": "never-fits", "decision": 8})
    server.answers("GET", f"{API}/workloads/w-1/", {"id": "w-1", "state": "never-fits", "pods": pods})
    server.answers("GET", f"{API}/decisions/7/", DECISION)
    server.answers("GET", f"{API}/decisions/8/", REFUSED)
    result = run("explain", "w-1")
    assert result.exit_code == 11
    assert "IsaMissingExtension" in result.stdout
    assert "20 of 31 decisions" in result.stderr


def test_names_cannot_leave_their_place_in_the_address(server: Server) -> None:
    run("get", "nodes", "../workloads/w-1")
    assert server.asked[0].url.raw_path.startswith(b"/api/v1/nodes/..%2Fworkloads%2Fw-1/")


def test_explain_tells_on_what_the_expected_use_rested(server: Server) -> None:
    use = {"basis": "learnt p95 of 12 pods of Deployment/web", "amounts": {"cpu": "2500m", "memory": "1Gi"}}
    server.answers("GET", f"{API}/decisions/7/", {**DECISION, "expectedUse": use})
    assert "expected use: cpu 2500m, memory 1Gi (learnt p95 of 12 pods of Deployment/web)" in run("explain", "7").stdout


def test_the_queue_is_listed_by_place(server: Server) -> None:
    place = {
        "position": 1,
        "standing": "due",
        "pod": "ml/train-0",
        "workload": "w-1",
        "policy": "hetsched",
        "priority": 5,
    }
    place |= {"gang": "ml/train", "state": "pending", "attempts": 0}
    server.answers("GET", f"{API}/queue/", {"items": [place], "next": None})
    header, row = run("get", "queue", "--cluster", "lab").stdout.splitlines()
    assert header.split()[:3] == ["position", "standing", "pod"]
    assert row.split() == ["1", "due", "ml/train-0", "5", "ml/train", "hetsched", "pending", "0", "w-1"]
    assert server.asked[0].url.params["cluster"] == "lab"
