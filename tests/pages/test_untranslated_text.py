"""Chinese pages contain no English sentences except quoted code.

The pages show a demo fleet with decisions, pods with every kind of rejection, and actions of users. Every page is read;
a run of two English words counts as an untranslated sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.utils import timezone

from hetsched.access.tokens import create_token
from hetsched.adapters.traces.simulated_fleet import demo_cluster
from hetsched.contracts.api.decision import PolicyRef
from hetsched.contracts.api.golden import Expectation
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import EMPTY
from hetsched.inventory.actions import cordon, set_default_policy
from hetsched.inventory.maintenance import set_maintenance
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.placement.actions import HoldPart, cancel, create_hold, import_cluster, set_priority
from hetsched.placement.actions.webhooks import WebhookSettings, add_webhook
from hetsched.placement.models import Decision, Hold
from hetsched.policies.actions import activate, rollback, save_draft
from hetsched.policies.goldens import save_golden
from hetsched.policies.models import PolicyRevision
from hetsched.policies.plan_contracts import Once
from hetsched.policies.plans import save_plan
from tests.browser.screens import SCREENS
from tests.builders import a_pod
from tests.builtins import builtin_policies
from tests.pages.readable_texts import english
from tests.situations import ALICE, submitted
from workers.demo import tick
from workers.schedule import run as decide

# Commands, and the name of a program that submits.
NAMES = {"demo stream", "hetsched cluster connect", "kubectl config view"}
POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "main", "image": "demo:1", "resources": {"requests": {"cpu": "1"}}}]},
}  # fmt: skip
# A pod for every kind of rejection, named after its request.
REFUSED = {
    "everything": a_pod("everything").cpu(9999).memory("9999Gi"),
    "vector": a_pod("vector").isa("rv64gcv_zvkng_zvl1024b"),
    "wrong": a_pod("wrong").wrong(message=Message("{text} is not a known instruction set", text="'rv99'")),
    "cards": a_pod("cards").gpu(9),
    "nowhere": a_pod("nowhere").on_nodes_with(rack="none"),
    "gang": a_pod("gang").gang("g", 4),
    "narrow": a_pod("narrow").numa(cpu_policy="static-bind").cpu(99),
    "near": a_pod("near").near("kubernetes.io/hostname", app="absent"),
    "policy": a_pod("policy").policy("nothing"),
}


@pytest.fixture
def fleet(db: None, settings: Any) -> Cluster:
    """Return a demo fleet with objects of every kind on every page."""
    settings.SECRET_KEY_GIVEN = True
    settings.HETSCHED_CALLBACK_HOSTS = ["ci.example"]
    builtin_policies()
    cluster = import_cluster(demo_cluster(7), name="demo", actor=ALICE, kind=ClusterKind.DEMO, demo_seed=7)
    for _ in range(3):
        tick()
        decide(cluster.pk)
    workloads = {name: submitted(cluster, pod) for name, pod in REFUSED.items()}
    decide(cluster.pk)
    set_priority(workloads["vector"], 7, actor=ALICE, reason="-")
    cancel(workloads["nowhere"], actor=ALICE, reason="-")
    cordon(cluster, "k1-0", actor=ALICE, reason="-")
    tomorrow = timezone.now() + timedelta(days=1)
    set_maintenance(cluster, "a100-0", "card", "0", tomorrow.isoformat(), actor=ALICE, reason="-")
    set_default_policy(cluster, "binpack", actor=ALICE, reason="-")
    spec = PolicyRevision.objects.get(policy__name="spread", state="active").spec
    draft = save_draft(msgspec.structs.replace(spec, description="-"), actor=ALICE, reason="-")
    activate("spread", draft.version, actor=ALICE, reason="-")
    rollback("spread", actor=ALICE, reason="-")
    save_plan("later", policy_name="spread", once=Once(draft.version, tomorrow), actor=ALICE, reason="-")
    manifest = json.dumps(POD)
    save_golden(
        "g", cluster=cluster, manifest=manifest, expectation=Expectation(nodes=("k1-0",)), actor=ALICE, reason="-"
    )
    at = Cluster.objects.get(pk=cluster.pk).revision
    part = HoldPart(a_pod("release").build(), "k1-0", EMPTY)
    create_hold(
        cluster.pk, [part], revision=at, policy=PolicyRef("binpack", 1), seconds=600, actor=ALICE, owner="user:1"
    )
    create_token(role="submitter", name="CI", quota={"cpu": "8"})
    add_webhook(WebhookSettings("CI", "https://ci.example/"), owner="user:1", actor=ALICE, reason="-")
    return Cluster.objects.get(pk=cluster.pk)


@pytest.fixture
def addresses(fleet: Cluster) -> list[str]:
    """Return the addresses of every page, and of the page of each rejection."""
    decisions = Decision.objects.exclude(pod=None).select_related("pod")
    placed, refused = decisions.filter(verdict="placed").latest("id"), decisions.exclude(verdict="placed").latest("id")
    ids = {
        "placed": placed.pk, "placed_workload": placed.pod.workload_id,
        "refused": refused.pk, "refused_workload": refused.pod.workload_id, "hold": Hold.objects.get().pk,
    }  # fmt: skip
    latest = {decision.pod_name: decision.pk for decision in decisions.filter(pod_name__in=REFUSED).order_by("id")}
    return [
        *(screen.address.format(**ids) for screen in SCREENS),
        *(f"/decisions/{pk}/" for pk in latest.values()),
        "/audit/?show=all",
    ]


def test_every_page_is_translated(addresses: list[str], browsing: Callable[..., Client]) -> None:
    root = browsing(is_superuser=True)
    remaining = set()
    for address in addresses:
        answer = root.get(address, headers={"accept-language": "zh-CN"}, follow=True)
        assert answer.status_code == 200, address
        remaining |= {(address, run) for run in english(answer.content.decode()) if run not in NAMES}
    assert remaining == set()


def test_english_is_found_in_texts_and_titles_but_not_in_code() -> None:
    page = '<p title="a node to be Ready">节点 the node is cordoned<br><code>get nodes</code> k1-0 who=ada age=2h</p>'
    assert list(english(page)) == ["a node to be", "the node is cordoned"]
