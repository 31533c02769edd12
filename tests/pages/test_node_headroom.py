"""The node page: remaining capacity and its limit, pods that need its instruction set, a candidate, the last day."""

from __future__ import annotations

import re

from django.test import Client

from hetsched.contracts.objects.allocation import Allocation, CardGrant, ZoneGrant
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Reservation
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed, recorded, refusing, submitted

from .test_node_facts import words


def test_first_sentence_has_the_headroom_and_the_limiting_resource(viewer: Client, cluster: Cluster) -> None:
    placed(cluster, "n1", a_pod("build", "ci").cpu(2).memory("1Gi"))
    # 8 - 2 = 6 CPUs are left for copies of 2: three; memory suffices for 31.
    text = words(viewer, "/nodes/n1/")
    assert "3 more pods like ci/build fit; CPU is the limiting resource." in text
    assert "2 CPUs, 1 GiB for example ci/build 3 CPU" in text
    assert "Insufficient" not in text  # it runs out, and the shape names its request


def test_gpu_memory_binds_where_shares_are_left(viewer: Client, cluster: Cluster) -> None:
    # Two GPUs of 40 GiB: shares of 100 ‰ with 20 GiB each fit twice on a GPU, four times in all.
    placed(cluster, "n1", a_pod("slice", "ml").cpu("100m").gpu(1, milli=100, memory_mib=20480))
    Reservation.objects.all().update(allocation=Allocation(gpus=(CardGrant(0, 100, 20480),)))
    assert "3 more pods like ml/slice fit; GPU memory is the limiting resource." in words(viewer, "/nodes/n1/")


def test_pending_pods_show_their_instruction_set_request(viewer: Client, db: None) -> None:
    cluster = a_cluster(a_node("rv").arch("riscv64", "rv64gcv"))
    submitted(cluster, a_pod("vectors").isa("rv64gcv"), a_pod("crypto").isa("rv64gc_zkt"))
    recorded(cluster, refusing(cluster))
    text = words(viewer, "/nodes/rv/isa/")
    assert "rv64gcv 1 can run natively default/vectors" in text
    assert "rv64gc_zkt 1 cannot run the node lacks zkt default/crypto" in text
    page = viewer.get("/nodes/rv/isa/").content.decode()
    # Features of every machine of the architecture are not counted.
    assert re.search(r'title="needed by 1 pending pod[^"]*">v <b>·1</b>', page)
    assert not re.search(r">f <b>", page)


def test_gpu_tab_shows_the_largest_fitting_request(viewer: Client, cluster: Cluster) -> None:
    pods = placed(cluster, "n1", a_pod("a"), a_pod("b"))
    for index, pod in enumerate(pods):
        grant = Allocation(gpus=(CardGrant(index, 250 + 250 * index, 10240),))
        Reservation.objects.filter(pod=pod).update(allocation=grant)
    text = words(viewer, "/nodes/n1/gpu/")
    assert "Largest request that fits on one GPU: 750 ‰ of a GPU, 30 GiB, on #0. 0 whole GPUs are free." in text


def test_ghost_is_on_the_gpus_and_cpus_of_the_address(viewer: Client, db: None) -> None:
    node = a_node("n1").gpus(2).zone("node-0", "0-3", siblings="0,2;1,3")
    cluster = a_cluster(node)
    pod = placed(cluster, "n1", a_pod("pinned"))[0]
    grant = Allocation(zones=(ZoneGrant("node-0", cpus="0,2", cpu_millis=2000),), gpus=(CardGrant(0, 800, 1),))
    Reservation.objects.filter(pod=pod).update(allocation=grant)
    zones = viewer.get("/nodes/n1/numa/", {"ghost": "cpus:2-3,9;gpu:0/500"}).content.decode()
    cells = re.findall(r'<span class="cpu-cell([^"]*)" title="CPU (\d+)', zones)
    assert [cpu for kind, cpu in cells if "ghost" in kind] == ["2", "3"]
    assert "CPUs 2 are in use now. CPUs 9 are not on this node." in " ".join(zones.split())
    cards = words(viewer, "/nodes/n1/gpu/?ghost=cpus:2-3;gpu:0/500;gpu:1;gpu:7")
    assert "preview 500 ‰ does not fit now" in cards
    assert "preview 1000 ‰" in cards
    assert "GPU 7 is not on this node." in cards
    assert "preview" not in words(viewer, "/nodes/n1/gpu/?ghost=nonsense:;gpu:x").lower()


def test_last_day_has_a_chart_and_a_table(viewer: Client, cluster: Cluster) -> None:
    assert "No pods used resources of this node in the last 24 hours." in words(viewer, "/nodes/n2/balance/")
    placed(cluster, "n1", a_pod("p").cpu(4).memory("8Gi"))
    page = viewer.get("/nodes/n1/balance/").content.decode()
    assert page.count("<polyline") == 3  # the balance of CPU and memory; network and disk are not stated
    # u = .5 and .25: mean .375, variance .015625.
    text = words(viewer, "/nodes/n1/balance/")
    assert (
        "Mean utilisation 0.3750 Variance of the utilisations 0.01563 Standard deviation of the utilisations 0.1250 "
        "Nash utility 0.9844" in text
    )
    assert "Show as table" in text
