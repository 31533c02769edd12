"""Each tab of a node shows what is known, by whom, and says unknown where nobody knows."""

from __future__ import annotations

import html
import re

import pytest
from django.test import Client

from hetsched.contracts.allocation import Allocation, CardGrant, ZoneGrant
from hetsched.contracts.node_report import CardLink, PowerReport
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.models import Reservation
from tests.builders import a_card, a_node, a_pod
from tests.scenes import a_cluster, placed

from .reading import main_of


def words(client: Client, address: str) -> str:
    """Return the page's main part as plain words."""
    answer = client.get(address)
    assert answer.status_code == 200
    main = main_of(answer.content.decode())
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main)).split())


def test_overview_names_the_fullest_resource(viewer: Client, cluster: Cluster) -> None:
    # 6 of 8 CPUs are 75 %, 6 of 32 GiB are 19 %, one of 110 pods is 1 %.
    placed(cluster, "n1", a_pod("p").cpu(6).memory("6Gi"))
    assert "The fullest resource is cpu: 75 % requested, 2 free." in words(viewer, "/nodes/n1/")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ready": False}, "Not ready"),
        ({"unschedulable": True, "cordoned_by_operator": True}, "Cordoned by an operator"),
        ({"unschedulable": True}, "Marked unschedulable"),
    ],
)
def test_overview_says_why_nothing_comes(
    viewer: Client, cluster: Cluster, change: dict[str, bool], sentence: str
) -> None:
    Node.objects.filter(name="n2").update(**change)
    assert sentence in words(viewer, "/nodes/n2/")


def test_isa_groups_extensions_and_names_the_source(viewer: Client, db: None) -> None:
    a_cluster(a_node("rv").arch("riscv64", "rv64gcv_zba_zbb_zkt"))
    text = words(viewer, "/nodes/rv/isa/")
    assert "source annotation hetsched.io/isa" in text
    assert "complete: what is not named is not there" in text
    assert re.search(r"bit manipulation \d+ zba zbb", text)
    assert re.search(r"cryptography \d+ zkt", text)


def test_what_nobody_stated_is_unknown(viewer: Client, cluster: Cluster) -> None:
    assert "Unknown: nobody stated what this node's processors can run" in words(viewer, "/nodes/n2/isa/")
    assert "Unknown: nobody reported this node's NUMA zones" in words(viewer, "/nodes/n2/numa/")
    balance = words(viewer, "/nodes/n2/balance/")
    assert "hetsched.io/network-mbps – not stated by this node" in balance
    assert "unknown" in balance


def test_cards_show_who_holds_how_much(viewer: Client, cluster: Cluster) -> None:
    pod = placed(cluster, "n1", a_pod("notebook"))[0]
    grant = Allocation(gpus=(CardGrant(index=1, milli=250, memory_mib=10240),))
    Reservation.objects.filter(pod=pod).update(allocation=grant)
    text = words(viewer, "/nodes/n1/gpu/")
    # 1000 - 250 thousandths and 40 - 10 GiB are left of card 1.
    assert "default/notebook 250 ‰, 10 GiB 750 30 GiB 40 GiB" in text
    assert "0 A100-SXM4-40GB nobody 1000 40 GiB 40 GiB" in text


def test_zones_show_each_cpu_with_its_owner(viewer: Client, db: None) -> None:
    node = a_node("n1").zone("node-0", "0-3", siblings="0,2;1,3").kubelet("none", reserved="3")
    cluster = a_cluster(node)
    pod = placed(cluster, "n1", a_pod("pinned"))[0]
    grant = Allocation(zones=(ZoneGrant("node-0", cpus="0,2", cpu_millis=2000, memory_mib=1024),))
    Reservation.objects.filter(pod=pod).update(allocation=grant)
    page = viewer.get("/nodes/n1/numa/").content.decode()
    cells = re.findall(r'<span class="cpu-cell([^"]*)" title="([^"]*)"', page)
    owner = "CPU {}: default/pinned"
    # Hyper-threads of one core stand together: 0 and 2, then 1 and 3.
    assert [title for _, title in cells] == [owner.format(0), owner.format(2), "CPU 1: shared pool", "CPU 3: reserved"]
    assert [kind.strip() for kind, _ in cells] == ["owner-1", "owner-1", "", "reserved"]
    assert "2 of 4" in words(viewer, "/nodes/n1/numa/")


def test_memory_of_a_zone_that_its_policy_does_not_count_is_not_said_to_be_free(viewer: Client, db: None) -> None:
    cluster = a_cluster(a_node("n1").zone("node-0", "0-3", memory="16Gi").zone("node-1", "4-7", memory="16Gi"))
    pods = placed(cluster, "n1", a_pod("first"), a_pod("second"))
    not_counted = Allocation(zones=(ZoneGrant("node-0", cpus="0,2", cpu_millis=2000),))
    Reservation.objects.filter(pod=pods[0]).update(allocation=not_counted)
    text = words(viewer, "/nodes/n1/numa/")
    assert "memory 16 GiB, not counted by zone" in text
    assert "Memory is counted by zone where numa-fit has its parameter memory on." in text
    assert text.count("0 B of 16 GiB") == 1  # the other zone: nobody is there
    counted = Allocation(zones=(ZoneGrant("node-0", cpus="1,3", cpu_millis=2000, memory_mib=1024),))
    Reservation.objects.filter(pod=pods[1]).update(allocation=counted)
    text = words(viewer, "/nodes/n1/numa/")
    assert "1 GiB of 16 GiB" in text
    assert "without that of 1 pod, which is not counted by zone" in text


def test_a_zone_that_fell_below_its_grants_names_who_is_at_risk(viewer: Client, db: None) -> None:
    cluster = a_cluster(a_node("n1").zone("node-0", "0-3", offline="1500m"))
    pod = placed(cluster, "n1", a_pod("pinned"))[0]
    grant = Allocation(zones=(ZoneGrant("node-0", cpus="0,2", cpu_millis=2000),), cpu_policy="exclusive")
    Reservation.objects.filter(pod=pod).update(allocation=grant)
    text = words(viewer, "/nodes/n1/numa/")
    # 2 CPUs granted, 1.5 left.
    assert "Online workloads leave 1500m CPUs here. over its capacity 500m CPUs more were granted" in text
    assert "At risk: default/pinned" in text


def test_links_and_power_are_shown_where_somebody_stated_them(viewer: Client, db: None) -> None:
    cards = (a_card(0, links=(CardLink(1, "nvlink", 40.0),)), a_card(1))
    a_cluster(a_node("n1").having(gpus=cards, power=PowerReport("capped", 1200)), a_node("n2").gpus(1))
    assert "Links" not in words(viewer, "/nodes/n2/gpu/")
    assert "#1 nvlink 40 GB/s" in words(viewer, "/nodes/n1/gpu/")
    assert "Power State capped Headroom 1200 W" in words(viewer, "/nodes/n1/")
    assert "Headroom" not in words(viewer, "/nodes/n2/")


def test_pods_and_decisions_link_to_their_reasons(viewer: Client, cluster: Cluster) -> None:
    pod = placed(cluster, "n1", a_pod("p"))[0]
    assert f"/workloads/{pod.workload_id}/?pod=default/p" in viewer.get("/nodes/n1/pods/").content.decode()
    assert f"/decisions/{pod.decision_id}/" in viewer.get("/nodes/n1/decisions/").content.decode()


def test_a_tab_or_node_that_is_not_there_is_told_by_name(viewer: Client, cluster: Cluster) -> None:
    assert "There is no node n9 in cluster fleet." in words_of_error(viewer, "/nodes/n9/")
    assert "There is no such tab." in words_of_error(viewer, "/nodes/n1/history/")


def words_of_error(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 404
    return answer.content.decode()


def test_a_stale_sample_is_said_to_be_stale(viewer: Client, db: None) -> None:
    # n1 was measured an hour before n2, so its 2 requested CPUs of 8 count, not the 6 measured.
    nodes = (a_node("n1").using("2026-11-20T10:00:00Z", cpu="6"), a_node("n2").using("2026-11-20T11:00:00Z", cpu="6"))
    a_cluster(*nodes, running=(a_pod("r").cpu(2).running_on("n1"),))
    text = words(viewer, "/nodes/n1/balance/")
    assert "The latest sample, of 2026-11-20T10:00:00Z from file, is too old: requests count instead." in text
    assert re.search(r"cpu 8 25 % 2 75 % 6 25 %", text)
    assert "stale" not in words(viewer, "/nodes/n2/balance/")
