"""Pending pods: what they wait for, their last attempt, and the result of shadow mode, on every page."""

from __future__ import annotations

from typing import Any

from django.test import Client
from django.utils import timezone

from hetsched.contracts.api.decision import NodeOutcome, PluginScore, Reason
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Decision, Pod, Shadow
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, submitted
from workers import schedule

WAITS = "a node with 3 free A100 GPUs"


def refused() -> Pod:
    cluster = a_cluster(a_node("n1").gpus(2))
    submitted(cluster, a_pod("p").gpu(3, model="A100"))
    schedule.run(cluster.pk)
    return Pod.objects.select_related("workload").get()


def test_pages_and_rest_show_the_requeue_conditions(viewer: Client, db: None) -> None:
    pod = refused()
    assert pod.workload is not None
    assert pod.tried_at is not None
    listed = "/workloads/?state=never-fits&columns=name~why~tried"  # the last attempt is hidden by default
    for page in (f"/workloads/{pod.workload.pk}/", f"/decisions/{pod.decision_id}/", listed):
        text = viewer.get(page).content.decode()
        assert WAITS in text, page
        assert pod.tried_at.isoformat() in text, page
    detail = viewer.get(f"/api/v1/decisions/{pod.decision_id}/").json()
    assert [item["text"] for item in detail["waitsFor"]] == [WAITS]
    assert "pod-released" not in detail["waitsFor"][0]["events"]  # it never fits
    row = viewer.get(f"/api/v1/workloads/{pod.workload.pk}/").json()["pods"][0]
    assert (row["waitsFor"], row["triedAt"] is not None) == (WAITS, True)
    Pod.objects.update(queued=True)
    (queued,) = viewer.get("/api/v1/queue/").json()["items"]
    assert queued["waitsFor"] == WAITS


def test_list_names_the_requeue_conditions_before_the_verdict(viewer: Client, db: None) -> None:
    pod = refused()
    text = viewer.get("/workloads/?state=never-fits").content.decode()
    link = f'href="/why/{pod.pk}/">Waits for: {WAITS}</a>'
    assert link in text
    assert text.index(link) < text.index("never fits this cluster")


def test_old_decision_shows_its_requeue_conditions(viewer: Client, db: None) -> None:
    pod = refused()
    Pod.objects.update(state="pending", waits_for=())
    text = viewer.get(f"/decisions/{pod.decision_id}/").content.decode()
    assert WAITS in text
    assert "last attempt" not in text
    assert Decision.objects.get().waits_for[0].plugin == "gpu-fit"


def compared(cluster: Cluster, name: str, judgement: str, **more: Any) -> Shadow:
    now = timezone.now()
    values = {"feasible": 2, "policy_name": "hetsched", "policy_version": 1, "summary": f"default/{name} is on n2"}
    return Shadow.objects.create(
        cluster=cluster, namespace="default", pod_name=name, uid=name, scheduler="default-scheduler",
        spec=a_pod(name).build(), node_name="n2", chosen="n1", revision=1, created_at=now, judged_at=now,
        judgement=judgement, **{**values, **more},
    )  # fmt: skip


def test_shadow_page_has_metrics_table_and_reasons(viewer: Client, cluster: Cluster) -> None:
    score = PluginScore("binpack", 10.0, 10.0, 1.0, 10.0)
    row = NodeOutcome("n2", "default/b", True, None, (score,), 10.0, None)
    compared(cluster, "a", "same", regret=0.0, rank=1)
    worse = compared(cluster, "b", "worse", regret=12.5, rank=2, their_score=10.0, our_score=22.5, theirs=row)
    compared(cluster, "c", "infeasible", refusal=Reason("TaintNotTolerated", "taints", 1, "it has a taint <x>"))
    text = viewer.get("/shadow/").content.decode()
    assert "33.3 %" in text
    assert "10 to 25" in text
    assert "it has a taint &lt;x&gt;" in text
    assert text.index("default/c") < text.index("default/b") < text.index("default/a")
    assert "default/a" not in viewer.get("/shadow/?judgement=worse").content.decode()
    why = viewer.get(f"/shadow/{worse.pk}/").content.decode()
    assert "default/b is on n2" in why
    assert "binpack" in why
    assert viewer.get("/shadow/999/").status_code == 404
    report = viewer.get("/api/v1/shadow/report/").json()
    assert (report["summary"]["agreement"], report["summary"]["regretMost"]) == (0.3333, 12.5)
    assert [item["pod"] for item in report["worst"]] == ["default/c", "default/b"]
    assert viewer.get(f"/api/v1/shadow/{worse.pk}/").json()["theirs"]["total"] == 10.0
    assert len(viewer.get("/api/v1/shadow/?judgement=same").json()["items"]) == 1
