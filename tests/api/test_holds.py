"""`holds/`: create for all pods of a manifest or none, read, extend, end, and use in a submission.

Not tested here: races and crashes of holds (`tests/apps/test_hold_expiry.py`, `tests/system`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from hetsched.access.tokens import create_token
from hetsched.engine.cluster.devices.extended_resources import claim_name
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import AuditEntry
from hetsched.placement.actions import import_cluster
from hetsched.placement.models import Hold, Pod, Reservation, Workload
from hetsched.placement.queries.invariants import check_invariants
from tests.unit.engine.test_served_resources import device, node, read, serving, slice_of
from workers.schedule import run

from .conftest import POD, Api

# Two of these do not fit on one of the two nodes of 8 CPUs, three fit on none of the cluster.
BIG = POD.replace("500m", "5")
SERVED = "example.com/gpu"
GPU = POD.replace("cpu: 500m", "cpu: 500m, nvidia.com/gpu: 2").replace("web", "train")


def held(caller: Api, manifest: str = BIG, status: int = 201, **query: Any) -> Any:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return caller("POST", f"holds/?{asked}", manifest, kind="application/yaml", status=status).json()


def submitted(caller: Api, manifest: str = BIG, status: int = 202, **query: Any) -> Any:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return caller("POST", f"workloads/?{asked}", manifest, kind="application/yaml", status=status).json()


def test_hold_is_reserved_and_shown(operator: Api, cluster: Cluster) -> None:
    hold = held(operator, seconds=60, note="release%2017")
    (pod,) = hold["pods"]
    assert (hold["state"], pod["pod"]) == ("held", "default/web")
    # 5 CPUs of 8 are reserved on that node, in the ledger and in its load.
    assert Node.objects.get(name=pod["node"]).requested["cpu"] == 5000
    assert Reservation.objects.get(active=True).requests["cpu"] == 5000
    detail = operator.get(f"holds/{hold['id']}/")
    assert (detail["note"], detail["podCount"], detail["workload"]) == ("release 17", 1, None)
    assert [(item["pod"], item["node"], item["held"]) for item in detail["pods"]] == [
        (f"default/web~{hold['id']}", pod["node"], True)
    ]
    assert AuditEntry.objects.get(action="hold.create").object_name == hold["id"]
    assert check_invariants() == []


def test_held_capacity_is_unavailable_to_others(operator: Api, cluster: Cluster) -> None:
    held(operator)
    held(operator, BIG.replace("web", "api"))
    accepted = submitted(operator, BIG.replace("web", "other"))
    run(cluster.pk)
    assert Workload.objects.get(pk=accepted["id"]).state == "not-now"
    assert check_invariants() == []


def test_hold_covers_the_whole_manifest_or_fails(operator: Api, cluster: Cluster) -> None:
    three = "---\n".join(BIG.replace("web", name) for name in ("a", "b", "c"))
    refused = held(operator, three, 409)
    assert (refused["code"], refused["whatIf"]["verdict"]) == ("NoRoom", "not-now")
    assert "plan" not in refused["whatIf"]
    assert not Hold.objects.exists()
    assert not Reservation.objects.exists()


def test_submission_with_a_hold_gets_its_capacity(operator: Api, cluster: Cluster) -> None:
    hold = held(operator)
    held(operator, BIG.replace("web", "api"))  # no other node has capacity
    accepted = submitted(operator, hold=hold["id"])
    assert operator.get(f"holds/{hold['id']}/")["state"] == "claimed"
    run(cluster.pk)
    (pod,) = operator.get(f"workloads/{accepted['id']}/")["pods"]
    assert (pod["state"], pod["node"]) == ("placed", hold["pods"][0]["node"])
    detail = operator.get(f"holds/{hold['id']}/")
    assert (detail["state"], detail["workload"]) == ("used", accepted["id"])
    assert [item["held"] for item in detail["pods"]] == [False]
    assert check_invariants() == []


def test_submission_gets_the_held_gpus(operator: Api, cluster: Cluster) -> None:
    one = GPU.replace("gpu: 2", "gpu: 1")
    first, second = held(operator, one), held(operator, one)
    cards = [operator.get(f"holds/{hold['id']}/")["pods"][0]["gpus"][0]["index"] for hold in (first, second)]
    assert sorted(cards) == [0, 1]
    operator("DELETE", f"holds/{first['id']}/", status=200)
    # Now both GPUs fit; the pod gets the held one.
    accepted = submitted(operator, one, hold=second["id"])
    run(cluster.pk)
    (pod,) = operator.get(f"workloads/{accepted['id']}/")["pods"]
    assert [card["index"] for card in pod["gpus"]] == [cards[1]]
    assert check_invariants() == []


def test_pod_gets_a_claim_of_its_own_for_held_devices(operator: Api, cluster: Cluster) -> None:
    """Devices serve the extended resource, and the claim for them has the name of its pod."""
    objects = (serving("gpu", SERVED), node("n1"), slice_of("n1", device("d0")))
    import_cluster(read(*objects), name=cluster.name, actor=SYSTEM)
    manifest = POD.replace("cpu: 500m", f"cpu: 500m, {SERVED}: 1")
    manifest = manifest.replace("requests:", f"limits: {{{SERVED}: 1}}, requests:")
    hold = held(operator, manifest)
    reserved = Reservation.objects.get(active=True).allocation
    submitted(operator, manifest.replace("name: web", "name: api"), hold=hold["id"])
    run(cluster.pk)
    pod = Pod.objects.get(origin__in=Pod.OURS)
    allocation = Reservation.objects.get(active=True, pod=pod).allocation
    assert allocation.extended
    assert reserved.extended
    assert allocation.extended.name == claim_name(pod.spec) != reserved.extended.name
    assert [grant.claim for grant in allocation.devices] == [allocation.extended.name]
    assert [grant.device for grant in allocation.devices] == [grant.device for grant in reserved.devices]
    assert operator.get(f"holds/{hold['id']}/")["state"] == "used"
    assert check_invariants() == []


def test_decision_names_the_used_hold_and_can_be_recomputed(operator: Api, cluster: Cluster) -> None:
    hold = held(operator)
    held(operator, BIG.replace("web", "api"))
    accepted = submitted(operator, hold=hold["id"])
    run(cluster.pk)
    number = operator.get(f"workloads/{accepted['id']}/")["pods"][0]["decision"]
    decision = operator.get(f"decisions/{number}/")
    assert f"on the capacity reserved by hold {hold['id']}" in decision["summary"]
    again = operator.get(f"decisions/{number}/again/")
    assert (again["same"], again["differences"]) == (True, [])


def test_unused_part_of_a_hold_is_released(operator: Api, cluster: Cluster) -> None:
    two = f"{BIG}---\n{BIG.replace('web', 'api')}"
    hold = held(operator, two)
    submitted(operator, hold=hold["id"])
    run(cluster.pk)
    from workers.sweep import run as sweep

    sweep()
    assert operator.get(f"holds/{hold['id']}/")["state"] == "used"
    assert Reservation.objects.filter(active=True).count() == 1
    assert check_invariants() == []


def test_larger_submission_is_decided_without_the_hold(operator: Api, cluster: Cluster) -> None:
    hold = held(operator, BIG.replace("cpu: 5", "cpu: 1"))
    held(operator, BIG.replace("web", "a"))
    held(operator, BIG.replace("web", "b"))
    accepted = submitted(operator, BIG, hold=hold["id"])
    run(cluster.pk)
    assert operator.get(f"workloads/{accepted['id']}/")["state"] == "not-now"
    assert operator.get(f"holds/{hold['id']}/")["state"] == "claimed"
    assert check_invariants() == []


def test_hold_is_claimed_by_one_submission(operator: Api, cluster: Cluster) -> None:
    hold = held(operator)
    submitted(operator, hold=hold["id"])
    refused = submitted(operator, BIG.replace("web", "late"), 409, hold=hold["id"])
    assert refused["code"] == "HoldOver"
    assert Workload.objects.count() == 1


def test_retry_with_the_same_key_succeeds_with_a_used_hold(operator: Api, cluster: Cluster) -> None:
    hold = held(operator)
    address = f"workloads/?hold={hold['id']}"
    first = operator("POST", address, BIG, kind="application/yaml", idempotency_key="k", status=202)
    run(cluster.pk)
    again = operator("POST", address, BIG, kind="application/yaml", idempotency_key="k", status=202)
    assert (again.json(), again["Idempotency-Replayed"]) == (first.json(), "true")


def test_repeated_key_creates_one_hold(operator: Api, cluster: Cluster) -> None:
    first = operator("POST", "holds/", POD, kind="application/yaml", idempotency_key="k", status=201)
    again = operator("POST", "holds/", POD, kind="application/yaml", idempotency_key="k", status=201)
    assert (again.json(), again["Idempotency-Replayed"]) == (first.json(), "true")
    other = operator("POST", "holds/", BIG, kind="application/yaml", idempotency_key="k", status=422)
    assert other.json()["code"] == "IdempotencyKeyReused"
    as_workload = operator("POST", "workloads/", POD, kind="application/yaml", idempotency_key="k", status=422)
    assert as_workload.json()["code"] == "IdempotencyKeyReused"
    assert (Hold.objects.count(), Workload.objects.count()) == (1, 0)
    assert check_invariants() == []


def test_sweep_ends_an_expired_hold(operator: Api, cluster: Cluster, local_messages: Any) -> None:
    hold = held(operator, seconds=60)
    Hold.objects.update(expires_at=Now() - timedelta(seconds=1))
    refused = submitted(operator, status=409, hold=hold["id"])
    assert refused["code"] == "HoldOver"
    from workers.sweep import run as sweep

    sweep()
    detail = operator.get(f"holds/{hold['id']}/")
    assert (detail["state"], detail["endReason"]) == ("expired", "the hold expired without a submission")
    assert not Reservation.objects.filter(active=True).exists()
    assert Node.objects.get(name=hold["pods"][0]["node"]).requested["cpu"] == 0
    assert AuditEntry.objects.get(action="hold.expired").object_name == hold["id"]
    assert check_invariants() == []


def test_pending_pods_are_placed_after_the_hold_ends(operator: Api, cluster: Cluster) -> None:
    first = held(operator)
    held(operator, BIG.replace("web", "api"))
    waiting = submitted(operator, BIG.replace("web", "waits"))
    run(cluster.pk)
    operator("DELETE", f"holds/{first['id']}/", status=200)
    Pod.objects.filter(name="waits").update(not_before=None)  # the second of back-off after its first attempt
    run(cluster.pk)
    assert operator.get(f"workloads/{waiting['id']}/")["state"] == "placed"


def test_hold_is_extended_and_cancelled_with_a_reason(operator: Api, cluster: Cluster) -> None:
    hold = held(operator, seconds=60)
    address = f"holds/{hold['id']}/"
    tag = operator.tag(address)
    longer = {"action": "extend", "seconds": 3000, "reason": "the build is slow"}
    assert operator("POST", f"{address}actions/", longer, status=428).json()["code"] == "PreconditionRequired"
    extended = operator("POST", f"{address}actions/", longer, if_match=tag, status=200)
    assert extended.json()["expiresAt"] > hold["expiresAt"]
    assert operator("POST", f"{address}actions/", longer, if_match=tag, status=412)
    gone = {"action": "cancel", "reason": "not needed"}
    ended = operator("POST", f"{address}actions/", gone, if_match=extended["ETag"], status=200).json()
    assert (ended["state"], ended["endReason"]) == ("cancelled", "not needed")
    assert not Reservation.objects.filter(active=True).exists()
    assert operator("POST", f"{address}actions/", longer, if_match="*", status=409).json()["code"] == "HoldOver"
    assert {"hold.create", "hold.extend", "hold.cancel"} <= set(AuditEntry.objects.values_list("action", flat=True))


def test_claimed_hold_belongs_to_its_submission(operator: Api, cluster: Cluster) -> None:
    hold = held(operator)
    accepted = submitted(operator, hold=hold["id"])
    assert operator("DELETE", f"holds/{hold['id']}/", status=409).json()["code"] == "HoldClaimed"
    operator("DELETE", f"workloads/{accepted['id']}/", status=200)
    assert operator.get(f"holds/{hold['id']}/")["state"] == "used"
    assert not Reservation.objects.filter(active=True).exists()
    assert check_invariants() == []


@pytest.mark.parametrize("seconds", [0, -5, 3601, 10**9])
def test_hold_duration_is_limited(operator: Api, cluster: Cluster, seconds: int) -> None:
    wish = {"manifest": POD, "seconds": seconds}
    assert operator("POST", "holds/", wish, status=400).json()["code"] == "HoldTooLong"
    assert not Hold.objects.exists()


def test_holds_of_an_owner_are_limited(operator: Api, api: Callable[..., Api], cluster: Cluster, settings: Any) -> None:
    settings.HETSCHED_MOST_HOLDS = 1
    first = held(operator, POD)
    refused = operator("POST", "holds/", POD, kind="application/yaml", status=429)
    assert (refused.json()["code"], 1 <= int(refused["Retry-After"]) <= 600) == ("TooManyHolds", True)
    held(api("submitter"), POD)  # of other users
    operator("DELETE", f"holds/{first['id']}/", status=200)
    held(operator, POD)


def test_hold_is_managed_by_owner_and_operators(operator: Api, api: Callable[..., Api], cluster: Cluster) -> None:
    mine, other = api("submitter"), api("submitter")
    hold = held(mine)
    for refused in (
        other("DELETE", f"holds/{hold['id']}/", status=403),
        other("POST", f"workloads/?hold={hold['id']}", POD, kind="application/yaml", status=403),
    ):
        assert refused.json()["code"] == "HoldNotYours"
    operator("DELETE", f"holds/{hold['id']}/", status=200)


def test_holds_of_other_namespaces_return_404(operator: Api, api: Callable[..., Api], cluster: Cluster) -> None:
    hold = held(operator)
    limited = api("submitter", "lab")
    assert limited.get("holds/")["items"] == []
    limited("GET", f"holds/{hold['id']}/", status=404)
    limited("DELETE", f"holds/{hold['id']}/", status=404)
    assert held(limited, status=403)["code"] == "NamespaceNotAllowed"
    own = held(limited, POD.replace("{name: web}", "{name: web, namespace: lab}"))
    assert [row["id"] for row in limited.get("holds/")["items"]] == [own["id"]]


def test_list_is_paginated_newest_first(operator: Api, cluster: Cluster) -> None:
    ids = [held(operator, POD)["id"] for _ in range(3)]
    first = operator.get("holds/", limit=2)
    assert [row["id"] for row in first["items"]] == [ids[2], ids[1]]
    rest = operator("GET", first["next"]).json()
    assert ([row["id"] for row in rest["items"]], rest["next"]) == ([ids[0]], None)
    operator("DELETE", f"holds/{ids[0]}/", status=200)
    assert [row["id"] for row in operator.get("holds/", state="cancelled")["items"]] == [ids[0]]


def test_quota_includes_holds(operator: Api, cluster: Cluster) -> None:
    token = create_token(role="submitter", name="ci", quota={"cpu": "6"})[1]
    limited = Api(token)
    hold = held(limited)
    # 5 of 6 CPUs are held, and 5 more are asked for.
    assert held(limited, status=429)["code"] == "QuotaExceeded"
    assert submitted(limited, BIG.replace("web", "other"), 429)["code"] == "QuotaExceeded"
    # The submission is charged instead of its hold, not in addition to it.
    submitted(limited, hold=hold["id"])
    assert held(limited, POD.replace("500m", "2"), 429)["code"] == "QuotaExceeded"
    held(limited, POD.replace("500m", "1"))
    assert held(limited, POD.replace("500m", "7"), 403)["code"] == "QuotaTooSmall"


def test_hold_ignores_policies_of_the_manifest(operator: Api, cluster: Cluster) -> None:
    # Without `resource-fit` a pod of 50 CPUs would be placed on a node of 8.
    own = (
        "apiVersion: hetsched.io/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: mine}\n"
        "spec: {plugins: [{name: least-allocated}]}\n---\n"
    )
    huge = POD.replace("500m", "50")
    assert held(operator, own + huge, 400, policy="mine")["code"] == "PolicyUnknown"
    assert held(operator, own.replace("mine", "hetsched") + huge, 409)["code"] == "NoRoom"
    asked = {"manifest": own + huge, "policy": "mine", "plan": True}
    assert operator("POST", "what-if/", asked, status=400).json()["code"] == "PolicyUnknown"
    assert not Hold.objects.exists()


def test_claimed_hold_is_charged_beyond_its_submission(operator: Api, cluster: Cluster) -> None:
    limited = Api(create_token(role="submitter", name="ci", quota={"cpu": "6"})[1])
    hold = held(limited)
    # 5 CPUs are held. A pod of 1 CPU that never fits claims them: 5 of 6 stay taken, not 1.
    submitted(limited, POD.replace("500m", "1").replace("web", "small"), hold=hold["id"])
    assert held(limited, POD.replace("500m", "2"), 429)["code"] == "QuotaExceeded"
    held(limited, POD.replace("500m", "1"))
