"""Each tab of a node shows its facts with their sources, and "unknown" for missing ones."""

from __future__ import annotations

import html
import re

import msgspec
import pytest
from django.test import Client
from django.utils import timezone

from hetsched.contracts.objects.allocation import Allocation, CardGrant, ZoneGrant
from hetsched.contracts.objects.node_report import CardLink, KubeletGrant, PowerReport
from hetsched.contracts.objects.pinned_memory import MemoryGrant
from hetsched.contracts.times import rfc3339
from hetsched.contracts.units import MIB
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.models import Reservation
from tests.builders import a_card, a_node, a_pod
from tests.situations import a_cluster, placed, submitted

from .reading import main_of


def words(client: Client, address: str) -> str:
    """Return the text of the page's main part."""
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
def test_overview_has_the_reason_for_no_new_pods(
    viewer: Client, cluster: Cluster, change: dict[str, bool], sentence: str
) -> None:
    Node.objects.filter(name="n2").update(**change)
    assert sentence in words(viewer, "/nodes/n2/")


def test_isa_explains_numbers_only_if_it_shows_one(viewer: Client, db: None) -> None:
    cluster = a_cluster(a_node("rv").isa("rv64gcv"))
    note = "The number next to an extension is the number of pending pods that need it."
    submitted(cluster, a_pod("arm").isa("armv8.2-a"))
    assert note not in words(viewer, "/nodes/rv/isa/")
    submitted(cluster, a_pod("vector").isa("rv64gcv"))
    assert note in words(viewer, "/nodes/rv/isa/")


def test_isa_groups_extensions_and_names_the_source(viewer: Client, db: None) -> None:
    a_cluster(a_node("rv").arch("riscv64", "rv64gcv_zba_zbb_zkt"))
    text = words(viewer, "/nodes/rv/isa/")
    assert "source annotation hetsched.io/isa" in text
    assert "complete: unlisted extensions are absent" in text
    assert re.search(r"bit manipulation \d+ zba zbb", text)
    assert re.search(r"cryptography \d+ zkt", text)


def test_unreported_fact_is_unknown(viewer: Client, cluster: Cluster) -> None:
    assert "The instruction set of this node is unknown." in words(viewer, "/nodes/n2/isa/")
    assert "The NUMA zones of this node are unknown" in words(viewer, "/nodes/n2/numa/")
    balance = words(viewer, "/nodes/n2/balance/")
    assert "hetsched.io/network-mbps – not reported by this node" in balance
    assert "unknown" in balance


def test_gpus_show_their_holders_and_shares(viewer: Client, cluster: Cluster) -> None:
    pod = placed(cluster, "n1", a_pod("notebook"))[0]
    grant = Allocation(gpus=(CardGrant(index=1, milli=250, memory_mib=10240),))
    Reservation.objects.filter(pod=pod).update(allocation=grant)
    text = words(viewer, "/nodes/n1/gpu/")
    # 1000 - 250 thousandths and 40 - 10 GiB are left of GPU 1.
    assert "default/notebook 250 ‰, 10 GiB 750 30 GiB 40 GiB" in text
    assert "0 A100-SXM4-40GB none 1000 40 GiB 40 GiB" in text


def test_zones_show_each_cpu_with_its_owner(viewer: Client, db: None) -> None:
    node = a_node("n1").zone("node-0", "0-3", siblings="0,2;1,3").kubelet("none", reserved="3")
    cluster = a_cluster(node)
    pod = placed(cluster, "n1", a_pod("pinned"))[0]
    grant = Allocation(zones=(ZoneGrant("node-0", cpus="0,2", cpu_millis=2000, memory_mib=1024),))
    Reservation.objects.filter(pod=pod).update(allocation=grant)
    page = viewer.get("/nodes/n1/numa/").content.decode()
    cells = re.findall(r'<span class="cpu-cell([^"]*)" title="([^"]*)"', page)
    owner = "CPU {}: default/pinned"
    # Hyper-threads of one core are shown together: 0 and 2, then 1 and 3.
    assert [title for _, title in cells] == [owner.format(0), owner.format(2), "CPU 1: shared pool", "CPU 3: reserved"]
    assert [kind.strip() for kind, _ in cells] == ["owner-1", "owner-1", "", "reserved"]
    assert "2 of 4" in words(viewer, "/nodes/n1/numa/")


def test_use_that_nothing_tracks_by_zone_is_unknown(viewer: Client, db: None) -> None:
    cluster = a_cluster(a_node("n1").cpu(8).zone("node-0", "0-3").zone("node-1", "4-7"), name="lab")
    assert "0 of 4" in words(viewer, "/nodes/n1/numa/")
    placed(cluster, "n1", a_pod("p").cpu(6))
    text = words(viewer, "/nodes/n1/numa/")
    assert "0 of 4" not in text
    assert text.count("CPU: use unknown, capacity 4.") == 2
    assert "The CPU use of the zones is unknown: hetsched has not assigned any zones on this node" in text


def test_cpus_that_the_kubelet_gave_are_not_shown_as_shared(viewer: Client, db: None) -> None:
    numa = a_node("n1").zone("node-0", "0-7", cpu="8").kubelet("static").build().numa
    assert numa is not None
    grants = (KubeletGrant("elsewhere", "0-1", foreign=True), KubeletGrant("uid-p", "4-6"))
    node = a_node("n1").cpu(8).having(numa=msgspec.structs.replace(numa, grants=grants))
    a_cluster(node, name="lab", running=(a_pod("p").cpu(3).guaranteed().having(uid="uid-p").running_on("n1"),))
    text = words(viewer, "/nodes/n1/numa/")
    assert "shared pool 2-3,7" in text
    assert "a pod not managed by hetsched 0-1" in text
    assert "default/p 4-6" in text
    assert "5 of 8" in text


def test_options_that_are_not_modelled_are_shown_as_unknown(viewer: Client, db: None) -> None:
    numa = a_node("n1").zone("node-0", "0-3").kubelet("static").build().numa
    assert numa is not None
    options = {"full-pcpus-only": "true", "shiny-new-option": "true"}
    a_cluster(a_node("n1").having(numa=msgspec.structs.replace(numa, cpu_manager_options=options)), name="lab")
    text = words(viewer, "/nodes/n1/numa/")
    assert "CPU manager options full-pcpus-only=true shiny-new-option=true" in text
    # Nothing reports which CPUs of the zone are threads of one core, so full-pcpus-only cannot be predicted either.
    unknown = "shiny-new-option=true, full-pcpus-only=true"
    assert (
        f"unknown hetsched ignores these options when it predicts whether the kubelet admits a pod: {unknown}." in text
    )


def test_memory_of_zones_is_unknown_where_pods_hold_memory_of_any_zone(viewer: Client, db: None) -> None:
    cluster = a_cluster(a_node("n1").zone("node-0", "0-3", memory="16Gi").zone("node-1", "4-7", memory="16Gi"))
    pods = placed(cluster, "n1", a_pod("pinned").memory("1Gi"), a_pod("shared").memory("4Gi"))
    pinned = Allocation(zones=(ZoneGrant("node-0", cpus="0,2", cpu_millis=2000),))
    Reservation.objects.filter(pod=pods[0]).update(allocation=pinned)
    text = words(viewer, "/nodes/n1/numa/")
    assert text.count("memory 16 GiB, not counted per zone") == 2
    assert "0 B of 16 GiB" not in text


def test_memory_assigned_by_the_kubelet_is_shown_by_zone(viewer: Client, db: None) -> None:
    numa = a_node("n1").zone("node-0", "0-3", memory="16Gi").zone("node-1", "4-7", memory="16Gi").build().numa
    assert numa is not None
    zones = tuple(msgspec.structs.replace(zone, assignable={"memory": 15 * 1024 * MIB}) for zone in numa.zones)
    static = msgspec.structs.replace(numa, zones=zones, memory_manager_policy="Static")
    cluster = a_cluster(a_node("n1").having(numa=static))
    (pod,) = placed(cluster, "n1", a_pod("db").memory("4Gi"))
    held = Allocation(memory=(MemoryGrant(("node-1",), "memory", 4096 * MIB),))
    Reservation.objects.filter(pod=pod).update(allocation=held)
    text = words(viewer, "/nodes/n1/numa/")
    assert "memory 0 B of 15 GiB assigned by the kubelet" in text
    assert "memory 4 GiB of 15 GiB assigned by the kubelet" in text
    assert "not counted per zone" not in text


def test_uncounted_memory_of_a_zone_is_not_shown_as_free(viewer: Client, db: None) -> None:
    cluster = a_cluster(a_node("n1").zone("node-0", "0-3", memory="16Gi").zone("node-1", "4-7", memory="16Gi"))
    pods = placed(cluster, "n1", a_pod("first"), a_pod("second"))
    not_counted = Allocation(zones=(ZoneGrant("node-0", cpus="0,2", cpu_millis=2000),))
    Reservation.objects.filter(pod=pods[0]).update(allocation=not_counted)
    text = words(viewer, "/nodes/n1/numa/")
    assert "memory 16 GiB, not counted per zone" in text
    assert "Memory is counted per zone if the numa-fit parameter “memory” is enabled." in text
    assert "0 B of 16 GiB" not in text  # the other zone: second has no zone and may hold memory of it
    counted = Allocation(zones=(ZoneGrant("node-0", cpus="1,3", cpu_millis=2000, memory_mib=1024),))
    Reservation.objects.filter(pod=pods[1]).update(allocation=counted)
    text = words(viewer, "/nodes/n1/numa/")
    assert "1 GiB of 16 GiB" in text
    assert "excludes the memory of 1 pod that is not counted per zone" in text


def test_zone_below_its_grants_names_the_pods_at_risk(viewer: Client, db: None) -> None:
    cluster = a_cluster(a_node("n1").zone("node-0", "0-3", offline="1500m"))
    pod = placed(cluster, "n1", a_pod("pinned"))[0]
    grant = Allocation(zones=(ZoneGrant("node-0", cpus="0,2", cpu_millis=2000),), cpu_policy="exclusive")
    Reservation.objects.filter(pod=pod).update(allocation=grant)
    text = words(viewer, "/nodes/n1/numa/")
    # 2 CPUs granted, 1.5 left.
    assert (
        "CPUs that online workloads leave for other pods: 1500m. over capacity "
        "The assigned CPUs exceed the current capacity by 500m" in text
    )
    assert "Pods at risk: default/pinned" in text


def test_links_and_power_are_shown_where_reported(viewer: Client, db: None) -> None:
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


def test_missing_tab_or_node_is_named(viewer: Client, cluster: Cluster) -> None:
    assert "Node n9 does not exist in cluster fleet." in words_of_error(viewer, "/nodes/n9/")
    assert "This tab does not exist." in words_of_error(viewer, "/nodes/n1/history/")


def words_of_error(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 404
    return answer.content.decode()


def test_stale_sample_is_marked(viewer: Client, db: None) -> None:
    # n1 was measured long ago and n2 just now, so n1 uses its 2 requested of 8 CPUs instead of the 6 measured.
    now = rfc3339(timezone.now())
    nodes = (a_node("n1").using("2026-11-20T10:00:00Z", cpu="6"), a_node("n2").using(now, cpu="6"))
    a_cluster(*nodes, running=(a_pod("r").cpu(2).running_on("n1"),))
    text = words(viewer, "/nodes/n1/balance/")
    assert "The latest sample (2026-11-20T10:00:00Z, source file) is stale. hetsched uses the requests instead." in text
    assert re.search(r"cpu 8 25 % 2 75 % 6 25 %", text)
    assert "stale" not in words(viewer, "/nodes/n2/balance/")
