"""The why page of a pod and the page of a decision: texts, permissions, and the rest of an expired decision."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.utils import timezone

from hetsched.contracts.api.decision import NodeOutcome, PluginScore, Reason, Verdict
from hetsched.contracts.objects.allocation import Allocation, DeviceGrant
from hetsched.contracts.objects.devices import AllocatedDevice, DeviceId, Devices, ResourceClaim
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Decision, ForgottenDecision, Pod
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed, submitted
from workers import schedule


def decide(
    pod: Pod, seconds: int, *reasons: Reason, version: int = 1, top: tuple[NodeOutcome, ...] = (), **fields: Any
) -> Decision:
    made = Decision.objects.create(
        cluster=pod.cluster, workload=pod.workload, pod=pod, namespace=pod.namespace, pod_name=pod.name,
        verdict=Verdict.NOT_NOW, policy_name="hetsched", policy_version=version, snapshot="x",
        cluster_revision=seconds, inventory_revision=1, summary=f"{pod.key} does not fit now", reasons=reasons, top=top,
        created_at=pod.created_at + timedelta(seconds=seconds), **fields,
    )  # fmt: skip
    Pod.objects.filter(pk=pod.pk).update(decision=made, state="not-now")
    return made


@pytest.fixture
def waiting(db: Any) -> Pod:
    pod = submitted(a_cluster(a_node("n1").cpu(2)), a_pod("p").cpu("4")).pods.get()
    # Two hours ago, so that the time of the test itself does not show.
    Pod.objects.filter(pk=pod.pk).update(created_at=timezone.now() - timedelta(hours=2))
    return Pod.objects.get()


FULL = Reason("InsufficientResource", "resource-fit", 1, "Insufficient cpu: 4 requested", before=1, after=0)
TAINT = Reason("UntoleratedTaint", "taints", 1, "a taint", before=1, after=0)


def test_pending_pod_shows_reasons_over_time_and_changes(viewer: Client, waiting: Pod) -> None:
    decide(waiting, 720, TAINT)
    decide(waiting, 1440, FULL, version=2)
    text = viewer.get(f"/why/{waiting.pk}/").content.decode()
    # 12 min in the queue, 12 min tainted, 96 min short of CPU: 10 %, 10 % and 80 % of two hours;
    # the time since then is rounded up to a minute.
    for part in ("12 min", "1 h 37 min", ">2 h 1 min", "in total", "80 %"):
        assert part in text, part
    assert "hetsched v1 → <strong>hetsched v2</strong>" in text
    assert 'data-step="resource-fit"' in text


def test_pod_without_a_current_decision_shows_earlier_ones(viewer: Client, waiting: Pod) -> None:
    decide(waiting, 720, TAINT)
    latest = decide(waiting, 1440, FULL)
    Pod.objects.filter(pk=waiting.pk).update(decision=None)
    page = viewer.get(f"/why/{waiting.pk}/")
    assert page.status_code == 200
    assert f"/decisions/{latest.pk}/?with=" in page.content.decode()


def test_sections_of_the_decision_are_replaced_with_it(viewer: Client, waiting: Pod) -> None:
    made = decide(waiting, 720, FULL)
    text = viewer.get(f"/why/{waiting.pk}/").content.decode()
    assert f'id="verdict" data-part data-decision="{made.pk}"' in text
    assert 'id="funnel" data-part' in text
    assert 'id="reasons" data-part' in text


def test_score_lists_plugins_that_did_not_score(viewer: Client, waiting: Pod) -> None:
    rated = NodeOutcome("n1", waiting.key, True, None, (PluginScore("least-allocated", 0.5, 50.0, 1.0, 50.0),), 50.0, 1)
    made = decide(waiting, 720, top=(rated,))
    for address in (f"/why/{waiting.pk}/", f"/decisions/{made.pk}/"):
        found = re.search(
            r"These plugins have no score for this pod: ([^.]+)\. The other", viewer.get(address).content.decode()
        )
        assert found is not None, address
        left_out = found[1].split(", ")
        # It requests no instruction set and no GPU; plugins that only filter are not named.
        assert "isa-match ×100" in left_out
        assert not any(name.startswith(("least-allocated", "resource-fit")) for name in left_out)


def test_misconfigured_pod_has_a_next_step_and_no_scores(viewer: Client, cluster: Cluster) -> None:
    pod = submitted(cluster, a_pod("p").wrong()).pods.get()
    schedule.run(cluster.pk)
    made = Decision.objects.get(pod=pod)
    assert made.verdict == Verdict.MISCONFIGURED
    step = "Correct the manifest and create the workload again."
    pages = [viewer.get(address).content.decode() for address in (f"/why/{pod.pk}/", f"/decisions/{made.pk}/")]
    assert all(step in page for page in pages)
    assert "data-all-nodes" not in pages[0]
    assert 'id="matrix"' not in pages[1]


def test_placed_and_imported_pods_have_a_page(viewer: Client, cluster: Cluster) -> None:
    (pod,) = placed(cluster, "n1", a_pod("p"))
    assert "default/p placed" in viewer.get(f"/why/{pod.pk}/").content.decode()
    a_cluster(a_node("m1"), name="old", running=(a_pod("there").having(node_name="m1"),))
    there = Pod.objects.get(name="there")
    assert "Another scheduler placed it, or" in viewer.get(f"/why/{there.pk}/").content.decode()
    assert viewer.get("/why/999999/").status_code == 404


def test_workload_links_to_its_blocking_pod(viewer: Client, db: Any) -> None:
    workload = submitted(a_cluster(), a_pod("a"), a_pod("b"))
    stuck = workload.pods.get(name="b")
    decide(stuck, 1, FULL)
    Pod.objects.filter(pk=stuck.pk).update(state="never-fits")
    answer = viewer.get(f"/workloads/{workload.pk}/why/")
    assert (answer.status_code, answer["Location"]) == (302, f"/why/{stuck.pk}/")


def test_two_decisions_are_compared(viewer: Client, waiting: Pod) -> None:
    first, second = decide(waiting, 10, TAINT), decide(waiting, 20, FULL)
    text = viewer.get(f"/decisions/{second.pk}/?with={first.pk}").content.decode()
    assert "taints: a taint" in text
    assert 'class="differs"' in text
    assert "Decision 99 does not exist." in viewer.get(f"/decisions/{second.pk}/?with=99").content.decode()


def test_expired_decision_returns_410_with_its_summary(viewer: Client, cluster: Cluster) -> None:
    ForgottenDecision.objects.create(
        id=7, cluster=cluster, namespace="default", verdict="placed", summary="p went to n1", created_at=timezone.now()
    )
    answer = viewer.get("/decisions/7/")
    assert answer.status_code == 410
    assert "p went to n1" in answer.content.decode()


def test_device_that_is_not_ready_is_shown(viewer: Client, waiting: Pod) -> None:
    device = DeviceId("gpu.example.com", "n1", "gpu-0")
    allocation = Allocation(devices=(DeviceGrant("train", "u", "gpu", device),))
    decide(waiting, 720, allocation=allocation, node_name="n1")
    cluster = waiting.cluster
    allocated = AllocatedDevice(device, not_ready="link down")
    claim = ResourceClaim("default", "train", allocated=(allocated, AllocatedDevice(DeviceId("d", "p", "other"))))
    cluster.definitions = msgspec.structs.replace(cluster.definitions, devices=Devices(claims={claim.key: claim}))
    cluster.save()
    text = viewer.get(f"/why/{waiting.pk}/").content.decode()
    assert "device gpu.example.com/n1/gpu-0 of claim train is not ready: link down" in text
