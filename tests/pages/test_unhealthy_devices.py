"""Health of the devices of running pods on the pages of the pod and of its node."""

from __future__ import annotations

import pytest
from django.test import Client

from hetsched.contracts.objects.observed import Changes, DeviceHealth, ObservedPod
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import apply_changes
from hetsched.placement.models import Pod
from tests.builders import a_node, a_pod
from tests.situations import a_live_cluster

ENGLISH = "device gpu-0 (example.com/gpu) of container main is unhealthy (ECC errors)"
CHINESE = "容器 main 的设备 gpu-0（example.com/gpu）不健康（ECC errors）"


@pytest.fixture
def observed(db: None) -> Cluster:
    """Return a cluster with one node and two running pods, of which one has an unhealthy device."""
    cluster = a_live_cluster()
    device = DeviceHealth("main", "example.com/gpu", "gpu-0", "Unhealthy", "ECC errors")
    pods = [
        ObservedPod(
            "default", name, name, scheduler_name="other", node_name="n1", phase="Running", devices=devices,
            spec=a_pod(name).having(uid=name, node_name="n1").build(),
        )
        for name, devices in (("bad", (device,)), ("good", ()))
    ]  # fmt: skip
    apply_changes(cluster.pk, Changes(nodes=[a_node("n1").build()], pods=pods), epoch=1)
    return cluster


@pytest.mark.parametrize(
    ("language", "text", "title"), [("en", ENGLISH, "Messages about pods"), ("zh-hans", CHINESE, "关于 Pod 的消息")]
)
def test_unhealthy_device_is_shown(viewer: Client, observed: Cluster, language: str, text: str, title: str) -> None:
    pages = {
        address: viewer.get(address, headers={"accept-language": language}).content.decode()
        for address in (f"/why/{Pod.objects.get(name='bad').pk}/", "/nodes/n1/", "/nodes/n1/pods/")
    }
    assert {address: page.count(text) for address, page in pages.items()} == dict.fromkeys(pages, 1)
    assert title in pages["/nodes/n1/"]


def test_node_with_healthy_devices_has_no_problems(viewer: Client, observed: Cluster) -> None:
    Pod.objects.get(name="bad").delete()
    page = viewer.get("/nodes/n1/").content.decode()
    assert "pod-problems" not in page
    assert ENGLISH not in page
