"""Names, labels and messages from files and clusters reach pages as text."""

from __future__ import annotations

from django.test import Client

from hetsched.contracts.api.decision import Reason, Verdict
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.models import Pod
from hetsched.placement.scheduling_queue.active_queue import first_active_pods
from hetsched.placement.scheduling_result import Result
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, recorded, submitted

HOSTILE = "</script><img src=x onerror=alert(1)>'\"{{7*7}}"


def hostile_cluster() -> Cluster:
    """Return a cluster in which every text contains markup; names bypass validation."""
    node = a_node("n1").labelled({"hetsched.io/pool": HOSTILE, "team": HOSTILE}).tainted("key", HOSTILE)
    cluster = a_cluster(node.having(annotations={"note": HOSTILE}, problems=(HOSTILE,)).gpus(1, model=HOSTILE))
    Node.objects.update(isa=HOSTILE)
    submitted(cluster, a_pod("p"), manifest=HOSTILE)
    results = [
        Result(pod, Verdict.NEVER_FITS, HOSTILE, "hetsched", 1, reasons=(Reason(HOSTILE, HOSTILE, 1, HOSTILE),))
        for pod in first_active_pods(cluster.pk, None, 500)
    ]
    recorded(cluster, results)
    Pod.objects.update(name=HOSTILE, message=HOSTILE)
    return cluster


def test_no_page_holds_the_markup(db: None, viewer: Client) -> None:
    hostile_cluster()
    pod = Pod.objects.get()
    tabs = ("", "isa/", "gpu/", "numa/", "balance/", "pods/", "decisions/")
    addresses = [f"/nodes/n1/{tab}" for tab in tabs] + [
        "/", "/nodes/", f"/nodes/?q={HOSTILE}", "/workloads/?state=never-fits", f"/workloads/{pod.workload_id}/",
        "/decisions/", f"/decisions/{pod.decision_id}/", "/what-if/", "/policies/", "/policies/hetsched/",
    ]  # fmt: skip
    for address in addresses:
        answer = viewer.get(address)
        assert answer.status_code == 200, address
        text = answer.content.decode()
        assert "<img src=x" not in text, address
        assert "</script><img" not in text, address


def test_hostile_query_finds_nothing(viewer: Client, cluster: Cluster) -> None:
    for value in ("%00", "a%00b", "%FF%FE", "x" * 5000, "';DROP TABLE x;--"):
        for address in ("/nodes/?q=", "/workloads/?q=", "/decisions/?q=", "/nodes/?page=", "/workloads/?state="):
            assert viewer.get(f"{address}{value}").status_code == 200, (address, value)
    assert viewer.get("/?cluster=%00").status_code == 200  # nothing is left of it, so the first cluster is used
    assert viewer.get("/?cluster=nowhere").status_code == 404
    assert viewer.get("/nodes/n1%00/").status_code == 404
    assert viewer.get("/decisions/999999999999999999/").status_code == 404
