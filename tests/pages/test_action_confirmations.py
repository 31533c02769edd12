"""Action buttons with their confirmation texts, shown only to users with the permission."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.contracts.objects.fact_conflicts import FactConflict
from hetsched.inventory.maintenance import set_maintenance
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement.models import Pod, Workload
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placing, recorded, submitted

from .reading import main_of


@pytest.fixture
def fleet(db: None) -> Cluster:
    node = a_node("n1").cpu(8).memory("16Gi").gpus(1).zone("a<b", "0-3").zone("node-1", "4-7")
    return a_cluster(node, a_node("n2"))


@pytest.fixture
def operator(browsing: Callable[..., Client]) -> Client:
    return browsing("operator")


def buttons(client: Client, address: str) -> dict[str, dict[str, Any]]:
    """Return the attributes of the page's own action buttons by label."""
    page = main_of(client.get(address).content.decode())
    found = {}
    for attributes, label in re.findall(r"<button [^>]*?(data-act=[^>]*)>([^<]*)</button>", page):
        values = {name: html.unescape(text) for name, text in re.findall(r'data-([a-z]+)="([^"]*)"', attributes)}
        found[html.unescape(label)] = {**values, "body": json.loads(values["body"])}
    return found


def pressed(client: Client, button: dict[str, Any], **fields: Any) -> Any:
    """Send the request of the dialog."""
    return client.post(
        button["act"], {**button["body"], "reason": "new fan", **fields}, content_type="application/json",
        headers={"If-Match": button["etag"]},
    )  # fmt: skip


def a_workload_on_card_0(fleet: Cluster) -> Workload:
    workload = submitted(fleet, a_pod("p").cpu(2).memory("4Gi").gpu(1))
    recorded(fleet, placing(fleet, "n1", CardGrant(0, 1000, 40960)))
    return workload


def test_cordon_lists_remaining_pods_and_lost_capacity(fleet: Cluster, operator: Client) -> None:
    a_workload_on_card_0(fleet)
    cordon = buttons(operator, "/nodes/n1/")["Cordon"]
    # 8 CPUs and 16 GiB, of which the pod has 2 and 4.
    assert cordon["text"] == (
        "1 pod runs on this node and is not evicted. "
        "The scheduler does not place new pods here until the node is uncordoned. 6 free CPUs and 12 GiB stay unused."
    )
    assert pressed(operator, cordon).status_code == 200
    assert "Uncordon" in buttons(operator, "/nodes/n1/gpu/")
    assert pressed(operator, cordon).status_code == 412  # another user was faster


def test_maintenance_is_started_from_the_tabs_of_gpus_and_zones(fleet: Cluster, operator: Client) -> None:
    a_workload_on_card_0(fleet)
    card = buttons(operator, "/nodes/n1/gpu/")["Start maintenance…"]
    assert card["text"].startswith(
        "1 pod uses GPU #0 and is not evicted: default/p. The scheduler does not place new pods on GPU #0 until"
    )
    assert card["more"] == "until-fields"
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert pressed(operator, card, until=until).status_code == 200
    shown = buttons(operator, "/nodes/n1/gpu/")
    assert shown["End maintenance"]["body"] == {"action": "end-maintenance", "card": 0}
    set_maintenance(fleet, "n1", "zone", "node-1", until, actor=SYSTEM, reason="fan")
    zones = buttons(operator, "/nodes/n1/numa/")
    assert zones["Start maintenance…"]["body"] == {"action": "maintenance", "zone": "a<b"}
    assert zones["End maintenance"]["body"] == {"action": "end-maintenance", "zone": "node-1"}


def test_override_is_removed_from_its_page(fleet: Cluster, operator: Client) -> None:
    override = buttons(operator, "/nodes/n1/")["Override fact…"]
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert pressed(operator, override, fact="isa", value="rv64gc", until=until).status_code == 200
    back = buttons(operator, "/nodes/n1/")["Remove override"]
    assert pressed(operator, back).status_code == 200
    assert "Remove override" not in buttons(operator, "/nodes/n1/")


def test_cancellation_lists_ended_pods_and_released_resources(fleet: Cluster, operator: Client) -> None:
    workload = a_workload_on_card_0(fleet)
    address = f"/workloads/{workload.pk}/"
    cancel = buttons(operator, address)["Cancel workload…"]
    assert cancel["text"] == (
        "1 pod is cancelled: 1 placed. This releases 2 CPUs, 4 GiB, 1 GPU. This cannot be undone."
    )  # fmt: skip
    assert cancel["tone"] == "bad"
    assert pressed(operator, cancel).status_code == 200
    assert buttons(operator, address) == {}


def test_pending_pod_is_retried_or_gets_another_priority(fleet: Cluster, operator: Client) -> None:
    workload = submitted(fleet, a_pod("p"), a_pod("q"))
    Pod.objects.filter(name="p").update(state="not-now")
    address = f"/workloads/{workload.pk}/"
    found = buttons(operator, address)
    assert found["Retry"]["text"] == "The scheduler retries 1 rejected or failed pod immediately."
    assert (
        found["Set priority…"]["text"]
        == "The current priority is 0. The new priority applies to 2 pending pods. Placed pods stay on their nodes."
    )
    assert pressed(operator, found["Set priority…"], priority=7).status_code == 200
    assert pressed(operator, buttons(operator, address)["Retry"]).status_code == 200


def test_node_with_contradicted_facts_is_trusted_again(fleet: Cluster, operator: Client) -> None:
    assert "Trust again" not in buttons(operator, "/nodes/n1/")
    doubt = FactConflict("numa", "2026-11-21T10:00:00Z", "default/p", "TopologyAffinityError", "no locality", "red")
    Node.objects.filter(name="n1").update(doubts=(doubt,))
    assert pressed(operator, buttons(operator, "/nodes/n1/")["Trust again"]).status_code == 200
    assert Node.objects.get(name="n1").doubts == ()


@pytest.mark.parametrize(
    ("group", "expected"),
    [("viewer", set()), ("policy-admin", set()), ("submitter", {"Retry", "Cancel workload…"})],
)
def test_viewer_finds_no_button(
    browsing: Callable[..., Client], fleet: Cluster, group: str, expected: set[str]
) -> None:
    workload = submitted(fleet, a_pod("p"))
    Pod.objects.update(state="not-now")
    client = browsing(group)
    assert set(buttons(client, f"/workloads/{workload.pk}/")) == expected
    for tab in ("", "gpu/", "numa/"):
        assert buttons(client, f"/nodes/n1/{tab}") == {}
