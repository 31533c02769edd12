"""The first screen shows the latest decisions of its own cluster, regardless of other clusters."""

from __future__ import annotations

import json
import re

from django.test import Client

from hetsched.inventory.models import Cluster
from hetsched.placement.queries.topics import LATEST
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed


def test_busy_cluster_does_not_displace_decisions_of_a_quiet_one(viewer: Client, cluster: Cluster) -> None:
    placed(cluster, "n1", a_pod("quiet").cpu("100m"))
    busy = a_cluster(a_node("b1").cpu(64).pods(200), name="busy")
    placed(busy, "b1", *(a_pod(f"busy-{i}").cpu("100m") for i in range(LATEST)))
    page = viewer.get("/?cluster=fleet").content.decode()
    found = re.search(r'<script id="initial"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found is not None
    carried = json.loads(found[1])["decisions"].values()
    assert [(item["cluster"], item["pod"]) for item in carried] == [("fleet", "default/quiet")]
