"""Commands against the real views: plans, holds, batches and deliveries from a shell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import Result

from hetsched.cli import resources
from hetsched.cli.workloads import batch, hold, plans, webhook, workloads
from hetsched.client import Client
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Delivery, Hold, Workload
from tests.unit.cli.calling import run
from workers.schedule import run as decide

from .conftest import POD, Api

Shell = Callable[..., Result]
BIG = POD.replace("500m", "5")  # of the 8 CPUs of a node


@pytest.fixture
def a_key(settings: Any) -> None:
    """Set SECRET_KEY, which encrypts secrets; token digests use it, so it comes before them."""
    settings.SECRET_KEY_GIVEN = True


@pytest.fixture
def shell(operator: Api, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Return a function that runs commands against the views of this process."""

    def handle(request: httpx.Request) -> httpx.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        kind = headers.pop("content-type", "text/plain")
        path = request.url.raw_path.decode()
        answer: Any = operator.client.generic(request.method, path, request.content, kind, headers=headers)
        return httpx.Response(answer.status_code, content=answer.content, headers=dict(answer.items()))

    def connect(_server: str, _token: str) -> Client:
        return Client("http://hetsched.test", transport=httpx.MockTransport(handle), patience_seconds=0)

    for module in (batch, hold, plans, resources, webhook, workloads):
        monkeypatch.setattr(module, "connect", connect)

    def call(*words: str | Path) -> Result:
        return run(*words)

    return call


def written(folder: Path, text: str, name: str = "pod.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_submitted_plan_is_carried_out(shell: Shell, cluster: Cluster, tmp_path: Path) -> None:
    pod, plan = written(tmp_path, BIG), tmp_path / "pod.plan"
    answer = shell("plan", "-f", pod, "--out", plan)
    assert answer.exit_code == 0, answer.stderr
    assert (plan.stat().st_mode & 0o777, Workload.objects.count()) == (0o600, 0)
    accepted = shell("submit", "-f", pod, "--plan", plan, "-o", "json")
    assert accepted.exit_code == 0, accepted.stderr
    decide(cluster.pk)
    found = shell("get", "workload", json.loads(accepted.stdout)["id"], "-o", "json")
    (placed,) = json.loads(found.stdout)["pods"]
    assert (placed["state"], placed["node"] in answer.stdout) == ("placed", True)


def test_stale_plan_is_rejected_with_a_new_one(shell: Shell, cluster: Cluster, tmp_path: Path) -> None:
    pod = written(tmp_path, BIG)
    token = json.loads(shell("plan", "-f", pod, "-o", "json").stdout)["plan"]["token"]
    assert shell("submit", "-f", written(tmp_path, BIG.replace("web", "other"), "other.yaml")).exit_code == 0
    decide(cluster.pk)
    refused = shell("submit", "-f", pod, "--plan", token, "-o", "json")
    assert refused.exit_code == 2
    assert "error [PlanStale]" in refused.stderr
    assert ("whatIf" in refused.stderr, "hetsched hold create" in refused.stderr) == (False, True)
    fresh = json.loads(refused.stdout)["plan"]["token"]
    assert shell("submit", "-f", pod, "--plan", fresh).exit_code == 0


def test_missing_plan_is_reported_before_any_request(shell: Shell, cluster: Cluster, tmp_path: Path) -> None:
    refused = shell("submit", "-f", written(tmp_path, BIG), "--plan", tmp_path / "missing.plan")
    assert refused.exit_code == 2
    assert "error [PlanUnreadable]" in refused.stderr
    assert "hetsched plan" in refused.stderr


def test_missing_cluster_is_reported_with_the_existing_ones(shell: Shell, cluster: Cluster, tmp_path: Path) -> None:
    refused = shell("submit", "-f", written(tmp_path, BIG), "--cluster", "lap")
    assert (refused.exit_code, "Known: lab" in refused.stderr) == (2, True)


def test_impossible_plan_exits_with_the_verdicts_code(shell: Shell, cluster: Cluster, tmp_path: Path) -> None:
    answer = shell("plan", "-f", written(tmp_path, POD.replace("500m", "900")), "--out", tmp_path / "none")
    assert answer.exit_code == 11
    assert not (tmp_path / "none").exists()


def test_hold_commands_create_list_extend_and_use(shell: Shell, cluster: Cluster, tmp_path: Path) -> None:
    pod = written(tmp_path, BIG)
    made = shell("hold", "create", "-f", pod, "--for", "5m", "--note", "release 17", "-o", "json")
    assert made.exit_code == 0, made.stderr
    held = json.loads(made.stdout)
    assert (held["note"], held["state"]) == ("release 17", "held")
    (row,) = json.loads(shell("get", "holds", "-o", "json").stdout)["items"]
    later = json.loads(shell("hold", "extend", held["id"], "--for", "20m", "-o", "json").stdout)
    assert row["expiresAt"] < later["expiresAt"]
    used = shell("submit", "-f", pod, "--hold", held["id"], "-o", "json")
    assert used.exit_code == 0, used.stderr
    decide(cluster.pk)
    assert Workload.objects.get(pk=json.loads(used.stdout)["id"]).state == "placed"


def test_missing_capacity_is_not_held_and_ended_holds_are_free(shell: Shell, cluster: Cluster, tmp_path: Path) -> None:
    three = written(tmp_path, "---\n".join(BIG.replace("web", name) for name in ("a", "b", "c")))
    refused = shell("hold", "create", "-f", three)
    assert refused.exit_code == 2
    assert "error [NoRoom]" in refused.stderr
    assert "not-now" in refused.stdout
    made = shell("hold", "create", "-f", written(tmp_path, BIG), "-o", "json")
    assert shell("hold", "cancel", json.loads(made.stdout)["id"]).exit_code == 0
    assert Hold.objects.get().state == "cancelled"
    assert shell("hold", "create", "-f", three, "--for", "soon").exit_code == 2


def test_repeated_folder_is_submitted_once(shell: Shell, cluster: Cluster, tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(tmp_path, POD.replace("web", name), f"{name}.yaml")
    first = shell("batch", "-f", tmp_path, "--idempotency-key", "night-7", "-o", "json")
    assert first.exit_code == 0, first.stderr
    written(tmp_path, POD.replace("web", "aa"), "aa.yaml")  # between the two, which changes their positions
    again = shell("batch", "-f", tmp_path, "--idempotency-key", "night-7", "-o", "json")
    items = {Path(item["file"]).stem: item for item in json.loads(again.stdout)["items"]}
    assert {name: item["replayed"] for name, item in items.items()} == {"a": True, "aa": False, "b": True}
    assert items["a"]["id"] == json.loads(first.stdout)["items"][0]["id"]
    assert Workload.objects.count() == 3


def test_batch_error_names_the_file(
    shell: Shell, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path of a temporary folder would take several lines of the table
    Path("jobs").mkdir()
    written(Path("jobs"), POD, "good.yaml")
    written(Path("jobs"), POD.replace("500m", "-1").replace("web", "bad"), "wrong.yaml")
    together = shell("batch", "-f", "jobs", "--all-or-nothing")
    assert together.exit_code == 2
    assert "jobs/wrong.yaml: manifest" in together.stderr  # and its position
    assert not Workload.objects.exists()
    each = shell("batch", "-f", "jobs")
    assert each.exit_code == 2
    rows = {Path(line.split()[0]).name: line for line in each.stdout.splitlines()[1:] if line.strip()}
    assert ("pending" in rows["good.yaml"], "refused" in rows["wrong.yaml"]) == (True, True)
    assert Workload.objects.count() == 1


@pytest.mark.parametrize("command", ["batch", "plan", "submit"])
def test_misspelt_field_is_printed_and_an_error_if_strict(
    shell: Shell, cluster: Cluster, tmp_path: Path, command: str
) -> None:
    pod = written(tmp_path, POD.replace("spec:", "spec:\n  nodeselector: {a: b}"))
    refused = shell(command, "-f", pod, "--strict")
    assert (refused.exit_code, Workload.objects.count()) == (2, 0)
    assert "the field 'nodeselector' is not known" in refused.stdout + refused.stderr
    accepted = shell(command, "-f", pod)
    assert accepted.exit_code == 0
    assert "spec.nodeselector: the field 'nodeselector' is not known. Did you mean nodeSelector?" in accepted.stderr


def test_waiting_for_a_batch_exits_with_the_worst_result(shell: Shell, cluster: Cluster, tmp_path: Path) -> None:
    written(tmp_path, POD, "small.yaml")
    written(tmp_path, POD.replace("500m", "900").replace("web", "big"), "big.yaml")
    words = ("batch", "-f", tmp_path, "--idempotency-key", "k", "--wait", "--timeout", "0")
    assert shell(*words).exit_code == 13
    decide(cluster.pk)
    assert shell(*words).exit_code == 11


def test_failed_deliveries_are_sent_again(a_key: None, shell: Shell, cluster: Cluster, settings: Any) -> None:
    settings.HETSCHED_CALLBACK_HOSTS = ["ci.example"]
    added = shell("webhook", "add", "ci", "https://ci.example/hook", "--state", "failed", "-o", "json")
    assert added.exit_code == 0, added.stderr
    hook = json.loads(added.stdout)
    assert hook["secret"].startswith("whsec_")
    tried = shell("webhook", "test", hook["id"], "-o", "json")
    assert tried.exit_code == 0, tried.stderr
    number = json.loads(tried.stdout)["id"]
    assert shell("redeliver", "--dead").stderr == "no failed deliveries found\n"
    Delivery.objects.update(state="dead")
    (again,) = json.loads(shell("redeliver", "--dead", "-o", "json").stdout)["items"]
    assert (again["id"], again["state"]) == (number, "due")
    Delivery.objects.update(state="dead")
    assert shell("redeliver", number).exit_code == 0
    assert shell("redeliver").exit_code == 2
    assert number in shell("get", "deliveries", "--where", f"webhook={hook['id']}").stdout
    rotated = json.loads(shell("webhook", "rotate", hook["id"], "-o", "json").stdout)
    assert rotated["secret"] != hook["secret"]
    assert shell("webhook", "remove", hook["id"]).exit_code == 0
    assert json.loads(shell("get", "webhooks", "-o", "json").stdout)["items"] == []
