"""`hetsched get` and `explain`: all pages, tables for users, the server's JSON for programs."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.unit.cli.answering import Server, a_decision, a_workload
from tests.unit.cli.calling import document, run

API = "/api/v1"


def node(name: str) -> dict[str, Any]:
    facts = {"family": "riscv", "isa": "rv64gc", "pool": "", "ready": True, "cordoned": False}
    return {"name": name, **facts, "cpu": 0.60251, "memory": None, "gpu": None, "cards": 0, "pods": 3}


SCORED = {
    "name": "n1",
    "pod": "default/web",
    "feasible": True,
    "refused": None,
    "scores": [{"plugin": "least-allocated", "raw": 50.0, "normalized": 50.0, "weight": 1.0, "weighted": 50.0}],
    "total": 50.0,
    "rank": 1,
}
DECISION = a_decision(7, summary="default/web fits on n1", nodes=[SCORED])
LACKS_V = {"code": "IsaMissingExtension", "plugin": "isa-match", "nodes": 4, "message": "the node lacks v"}
REFUSED = a_decision(8, "never-fits", reasons=[{**LACKS_V, "missing": ["v"], "before": 4, "after": 0}])


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


def test_table_shows_unknown_as_a_dash_and_ratios_as_percent(server: Server) -> None:
    server.answers("GET", f"{API}/nodes/", {"items": [node("a")], "next": None})
    header, row = run("get", "nodes", "--cluster", "demo").stdout.splitlines()
    assert header.split()[:3] == ["name", "family", "isa"]
    assert row.split() == ["a", "riscv", "rv64gc", "-", "yes", "no", "60%", "-", "-", "0", "3"]
    assert server.asked[0].url.params["cluster"] == "demo"


def test_single_object_is_printed_completely(server: Server) -> None:
    server.answers("GET", f"{API}/policies/spread/", {"name": "spread", "activeVersion": 2, "spec": {"plugins": []}})
    text = run("get", "policies", "spread").stdout
    assert "activeVersion" in text
    assert '{"plugins":[]}' in text


def test_plugins_come_as_one_list(server: Server) -> None:
    plugin = {"name": "taints", "summary": "Taints.", "points": ["filter", "score"]}
    server.answers("GET", f"{API}/plugins/", {"items": [plugin], "next": None})
    assert "filter score" in run("get", "plugins").stdout
    assert not server.asked[0].url.query


def test_decision_is_explained_with_its_candidate_nodes(server: Server) -> None:
    server.answers("GET", f"{API}/decisions/7/", DECISION)
    result = run("explain", "7")
    assert result.exit_code == 0
    assert "default/web fits on n1" in result.stdout
    header, row = (line.split() for line in result.stdout.splitlines()[-2:])
    assert header == ["rank", "node", "least-allocated", "×1", "total"]
    assert row == ["1", "n1", "50.00", "50.00"]


def test_rejection_is_explained_with_the_nearest_fit(server: Server) -> None:
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


def test_explain_of_a_placement_has_the_margin(server: Server) -> None:
    point = {"plugin": "taints", "weight": 3.0, "at": 1.5, "side": "below", "node": "n2"}
    margin = {"pod": "default/web", "node": "n1", "runnerUp": "n2", "margin": 4.25, "points": [point]}
    server.answers("GET", f"{API}/decisions/7/", {**DECISION, "nearestFit": [], "tipping": margin})
    text = run("explain", "7").stdout
    assert "n1 wins by 4.25 over n2" in text
    assert "n2 would win with taints below 1.5 (weight now 3)" in text


def test_explain_of_a_workload_starts_with_the_worst_pod(server: Server) -> None:
    pods = [
        {"pod": "default/a", "state": "placed", "decision": 7},
        {"pod": "default/b", "state": "never-fits", "decision": 8},
        {"pod": "default/c", "state": "pending", "decision": None},
    ]
    server.answers("GET", f"{API}/workloads/w-1/", a_workload("never-fits", *pods))
    server.answers("GET", f"{API}/decisions/7/", DECISION)
    server.answers("GET", f"{API}/decisions/8/", REFUSED)
    result = run("explain", "w-1", "-o", "json")
    assert result.exit_code == 11
    assert [decision["id"] for decision in document(result)["items"]] == [8, 7]


def test_explain_of_a_large_workload_shows_the_worst_decisions(server: Server) -> None:
    pods = [{"pod": f"default/p{number}", "state": "placed", "decision": 7} for number in range(30)]
    pods.append({"pod": "default/last", "state": "never-fits", "decision": 8})
    server.answers("GET", f"{API}/workloads/w-1/", a_workload("never-fits", *pods))
    server.answers("GET", f"{API}/decisions/7/", DECISION)
    server.answers("GET", f"{API}/decisions/8/", REFUSED)
    result = run("explain", "w-1")
    assert result.exit_code == 11
    assert "IsaMissingExtension" in result.stdout
    assert "20 of 31 decisions" in result.stderr


def test_names_cannot_leave_their_place_in_the_address(server: Server) -> None:
    run("get", "nodes", "../workloads/w-1")
    assert server.asked[0].url.raw_path.startswith(b"/api/v1/nodes/..%2Fworkloads%2Fw-1/")


def test_explain_shows_the_basis_of_the_expected_use(server: Server) -> None:
    use = {"basis": "learnt p95 of 12 pods of Deployment/web", "amounts": {"cpu": "2500m", "memory": "1Gi"}}
    server.answers("GET", f"{API}/decisions/7/", {**DECISION, "expectedUse": use})
    assert "expected use: cpu 2500m, memory 1Gi (learnt p95 of 12 pods of Deployment/web)" in run("explain", "7").stdout


def test_queue_is_listed_by_position(server: Server) -> None:
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


def test_kinds_have_singulars_and_a_near_miss_has_a_suggestion(server: Server) -> None:
    server.answers("GET", f"{API}/nodes/", {"items": [node("a")], "next": None})
    assert run("get", "node").stdout == run("get", "no").stdout == run("get", "nodes").stdout
    missed = run("get", "nodez")
    assert missed.exit_code == 2
    assert "Did you mean nodes?" in missed.stderr


def test_filters_go_to_the_server(server: Server) -> None:
    server.answers("GET", f"{API}/workloads/", {"items": [], "next": None})
    result = run("get", "workloads", "-n", "ci", "--where", "state=not-now")
    assert (result.exit_code, result.stderr) == (0, "no workloads found\n")
    assert dict(server.asked[0].url.params) == {"limit": "100", "namespace": "ci", "state": "not-now"}
    assert run("get", "workloads", "--where", "state").exit_code == 2


def test_workload_is_shown_with_its_state_durations(server: Server) -> None:
    spans = [{"state": "pending", "since": "2026-11-22T10:00:00Z", "seconds": 75.0}]
    server.answers("GET", f"{API}/workloads/w-1/", a_workload("running", states=spans))
    first, second, *_ = run("get", "workload", "w-1").stdout.splitlines()
    assert first == "w-1  running  web, on demo"
    assert second == "pending 1 min 15 s"


WHY = {
    "id": 78, "pod": "default/web", "cluster": "demo", "workload": "w-1", "state": "never-fits", "node": None,
    "decision": 8, "summary": "", "message": "", "pendingSeconds": 90.0,
    "spans": [
        {"code": "Queued", "plugin": "", "message": "", "pending": True, "since": "2026-11-22T10:00:00Z",
         "until": "2026-11-22T10:00:30Z", "seconds": 30.0, "decision": None},
        {"code": "IsaMissingExtension", "plugin": "isa-match", "message": "the node lacks v", "pending": True,
         "since": "2026-11-22T10:00:30Z", "until": None, "seconds": 60.0, "decision": 8},
    ],
    "changed": {"decision": 6, "verdicts": ["not-now", "never-fits"], "policies": ["spread v1", "spread v1"],
                "nodes": [5, 4], "revisions": 3, "inventory": True, "reasons": []},
    "gang": {"name": "ml/train", "placed": 1, "needed": 2, "brokenBy": "no node was found for ml/train-1",
             "members": [{"id": 1, "pod": "ml/train-1", "state": "not-now", "decision": 5}]},
    "outlook": {"evaluatedAt": "2026-11-22T10:02:00Z", "revision": 4, "policy": "spread v1", "verdict": "never-fits",
                "summary": "default/web never fits this cluster", "reasons": [], "nextSteps": [],
                "blockers": [[{"pod": "", "node": "n3", "priority": 0, "pdb": None}]]},
    "manifest": {},
}  # fmt: skip


def test_explain_of_a_rejection_equals_its_page(server: Server) -> None:
    server.answers("GET", f"{API}/decisions/8/", REFUSED)
    server.answers("GET", f"{API}/pods/78/why/", WHY)
    result = run("explain", "8")
    assert result.exit_code == 11
    lines = result.stdout.splitlines()
    assert lines[0] == "never-fits  default/web  on demo"
    assert "decision 8 at 2026-11-22 10:00:00 UTC by hetsched v1, by cluster default" in lines
    assert "gang ml/train: 1 of 2 members are placed" in lines
    assert "nodes left after each plugin: 4 nodes > isa-match 0  (as if every node were empty)" in lines
    assert "it fits on n3 without a pod of another namespace" in lines
    times = [line.split() for line in lines if " %" in line]
    assert times == [
        ["1", "min", "67", "%", "1", "the", "node", "lacks", "v", "isa-match"],
        ["30", "s", "33", "%", "1", "queued,", "no", "decision", "yet", "-"],
    ]
    assert "compared with decision 6: not-now -> never-fits; 3 changes of running pods, node facts changed" in lines


def test_explain_names_the_pods_that_preempted_this_one(server: Server) -> None:
    rows = [
        {"victim": "default/web", "pod": "ml/urgent", "podId": 9, "node": "n2", "decision": 5,
         "at": "2026-11-22T09:58:00Z"},
        {"victim": "default/web", "pod": "a pod of another namespace", "podId": None, "node": "n1", "decision": None,
         "at": "2026-11-22T09:40:00Z"},
    ]  # fmt: skip
    server.answers("GET", f"{API}/decisions/8/", {**REFUSED, "podId": 78})
    server.answers("GET", f"{API}/pods/78/why/", {**WHY, "preemptedBy": rows})
    lines = run("explain", "8").stdout.splitlines()
    assert "preempted by ml/urgent on n2 at 2026-11-22 09:58:00 UTC, decision 5" in lines
    assert "preempted by a pod of another namespace on n1 at 2026-11-22 09:40:00 UTC" in lines


def test_explain_of_a_pod_uses_its_latest_decision(server: Server) -> None:
    server.answers("GET", f"{API}/decisions/", {"items": [a_decision(7)], "next": None})
    server.answers("GET", f"{API}/decisions/7/", DECISION)
    assert run("explain", "default/web", "--cluster", "demo").exit_code == 0
    assert dict(server.asked[0].url.params) == {"limit": "1", "namespace": "default", "pod": "web", "cluster": "demo"}
    server.answers("GET", f"{API}/decisions/", {"items": [], "next": None})
    assert run("explain", "default/none").exit_code == 2


def test_undecided_pods_are_shown(server: Server) -> None:
    server.answers("GET", f"{API}/workloads/w-1/", a_workload("pending"))
    result = run("explain", "w-1")
    assert (result.exit_code, result.stdout) == (0, "default/web: pending, no decision yet\n")


def test_explain_watch_ends_at_the_placement(server: Server) -> None:
    refused = {"pod": "default/web", "state": "not-now", "decision": 8}
    placed = {"pod": "default/web", "state": "placed", "node": "n1", "decision": 7}
    answers = [a_workload("not-now", refused)] * 2 + [a_workload("placed", placed)]
    server.answers("GET", f"{API}/workloads/w-1/", *answers)
    server.answers("GET", f"{API}/decisions/7/", DECISION)
    server.answers("GET", f"{API}/decisions/8/", a_decision(8, "not-now"))
    result = run("explain", "w-1", "--watch")
    assert result.exit_code == 0
    assert [line.split("  ", 1)[1] for line in result.stderr.splitlines()] == [
        "default/web is not-now",
        "default/web fits on n1",
    ]


def test_times_in_lists_are_relative_to_now(server: Server) -> None:
    ago = datetime.now(UTC) - timedelta(hours=3, minutes=5)
    row = {**a_workload("running"), "createdAt": ago.isoformat()}
    server.answers("GET", f"{API}/workloads/", {"items": [row], "next": None})
    header, line = run("get", "wl").stdout.splitlines()
    assert header.split()[-1] == "created"
    assert line.rstrip().endswith("3 h 5 min ago")


def test_watched_list_prints_each_changed_row(server: Server) -> None:
    rows = [[node("a"), node("b")], [node("a"), {**node("b"), "ready": False}], [node("b")]]
    pages = [{"items": items, "next": None} for items in rows]
    server.answers("GET", f"{API}/nodes/", *pages, KeyboardInterrupt())
    result = run("get", "nodes", "--watch")
    assert [line.split()[1:] for line in result.stdout.splitlines()] == [
        ["a", "riscv", "rv64gc", "-", "yes", "no", "60%", "-", "-", "0", "3"],
        ["b", "riscv", "rv64gc", "-", "yes", "no", "60%", "-", "-", "0", "3"],
        ["b", "riscv", "rv64gc", "-", "no", "no", "60%", "-", "-", "0", "3"],
        ["b", "riscv", "rv64gc", "-", "yes", "no", "60%", "-", "-", "0", "3"],
        ["a", "gone"],
    ]


def test_json_watch_prints_one_document_per_line(server: Server) -> None:
    pages = [{"items": items, "next": None} for items in ([node("a")], [])]
    server.answers("GET", f"{API}/nodes/", *pages, KeyboardInterrupt())
    lines = run("get", "nodes", "--watch", "-o", "json").stdout.splitlines()
    assert [len(json.loads(line)["items"]) for line in lines] == [1, 0]


def test_headroom_names_copies_that_run_by_emulation(server: Server) -> None:
    shape = {
        "cpu": "2", "memory": "4Gi", "isa": "rv64gc", "model": None, "milli": None, "cards": 0,
        "counts": [0, 33], "emulatedCounts": [0, 33], "exact": [True, False], "reasons": ["the node is cordoned", None],
    }  # fmt: skip
    pools = [{"family": "riscv", "name": "boards"}, {"family": "x86", "name": "general"}]
    server.answers("GET", f"{API}/metrics/headroom/", {"pools": pools, "shapes": [shape]})
    header, boards, general = run("get", "headroom").stdout.splitlines()
    assert header.split() == ["asks", "pool", "fits", "emulated", "reason"]
    assert boards.split("  ")[-1].strip() == "the node is cordoned"
    assert general.split() == ["cpu", "2,", "4Gi,", "rv64gc", "x86", "general", ">=33", "33", "-"]


def test_text_that_is_no_id_is_rejected_without_a_request(server: Server) -> None:
    result = run("explain", "web")
    assert (result.exit_code, server.asked) == (2, [])
    assert "[OptionInvalid] ID: 'web' is no ID" in result.stderr
    assert "NAMESPACE/NAME" in result.stderr


def test_unknown_object_error_names_the_list_command(server: Server) -> None:
    hint = "GET nodes/ lists the existing objects"
    server.refuses("GET", f"{API}/nodes/n9/", 404, "NotFound", "there is no node 'n9'", hint=hint)
    result = run("get", "node", "n9")
    assert result.exit_code == 2
    assert result.stderr == "error [NotFound] there is no node 'n9'\n  hetsched get nodes lists the existing objects\n"
