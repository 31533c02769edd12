"""Nodes and pods of many kinds: each pod gets a correct placement or a reason why it has none.

Real here: etcd and kube-apiserver, PostgreSQL, Redis, and the product's own processes. Kubelets are simulated.
HETSCHED_TEST_NODES and HETSCHED_TEST_PODS set the size, multiples of 20 and 50; `make chaos` uses 1,000 and 5,000.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from tests.fault_table import Faults
from tests.kube import mixed_fleet
from tests.kube.control_plane import ControlPlane
from tests.kube.kubelet import Kubelet
from tests.kube.live import count_faults, listed, node_of, reason, scheduling

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.needs("etcd", "kube-apiserver", "postgres", "redis-server"),
    pytest.mark.timeout(1200),
]
NODES_COUNT = int(os.environ.get("HETSCHED_TEST_NODES", "100"))
PODS_COUNT = int(os.environ.get("HETSCHED_TEST_PODS", "500"))
CHECK_SECONDS = PODS_COUNT / 500  # one check reads every pod
PATIENCE_SECONDS = 900


def test_every_pod_has_a_correct_placement_or_a_reason(
    api: Api, plane: ControlPlane, faults: Faults, figures: dict[str, object]
) -> None:
    with scheduling(plane) as ours, Kubelet(api):
        assert ours.driver
        mixed_fleet.create_fleet(api, NODES_COUNT)
        began = time.monotonic()
        mixed_fleet.create_pods(api, PODS_COUNT, NODES_COUNT)
        while True:
            assert ours.driver("violations") == []
            pods, nodes = listed(api)
            assert mixed_fleet.placement_violations([pod for pod in pods if not _in_a_gang(pod)], nodes) == []
            waiting = [pod for pod in pods if not node_of(pod)]
            if len(pods) - len(waiting) == mixed_fleet.bindable(PODS_COUNT) and all(map(reason, waiting)):
                break
            kinds_left = Counter(pod["metadata"]["name"].rpartition("-")[0] for pod in waiting)
            assert time.monotonic() - began < PATIENCE_SECONDS, f"{kinds_left}\n{ours.log_tails()}"
            time.sleep(CHECK_SECONDS)
        took = time.monotonic() - began
        assert {pod["metadata"]["name"].rpartition("-")[0] for pod in waiting} == {"impossible"}
        assert {"cpu" in reason(pod).lower() for pod in waiting} == {True}
        faults.size = f"{len(nodes)} nodes, {len(pods)} pods"
        count_faults(api, ours, faults, mixed_fleet.bindable(PODS_COUNT), where="the end", seconds=PATIENCE_SECONDS)
        figures["a mixed fleet"] = (
            f"{len(nodes)} nodes, {len(pods)} pods: {len(pods) - len(waiting)} bound, "
            f"{len(waiting)} rejected with a reason, {took:.0f} s with their creation, "
            f"checked every {CHECK_SECONDS:.0f} s"
        )


def _in_a_gang(pod: dict[str, Any]) -> bool:
    """Return whether the pod may be bound some moments before its gang members."""
    return bool(pod["metadata"]["name"].startswith("gang-"))
