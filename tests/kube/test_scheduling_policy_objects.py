"""SchedulingPolicy objects of a real API server take effect, and their status reports the result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import SCHEDULING_POLICIES
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.models import Decision
from hetsched.policies.effective import active_specs
from hetsched.policies.models import Policy, PolicyObject
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.leases import following
from tests.kube import kinds
from tests.kube.control_plane import ControlPlane
from tests.kube.scene import an_informer, eventually, make, make_node, make_pod, states
from workers import report, schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
PATH = SCHEDULING_POLICIES.path(name="dense")


@pytest.fixture(scope="module", autouse=True)
def definitions(plane: ControlPlane) -> Iterator[None]:
    with kinds.installed(plane, kinds.ours()):
        yield


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    monkeypatch.setattr(report, "api_of", lambda _: api)
    follower = an_informer(api, cluster)
    yield follower
    follower.ended.set()
    api.send("DELETE", SCHEDULING_POLICIES.path())


def plugins(*scores: str, weight: float = 1) -> dict[str, Any]:
    return {"plugins": [{"name": "resource-fit"}, *({"name": name, "weight": weight} for name in scores)]}


def change(api: Api, spec: dict[str, Any]) -> None:
    api.send("PATCH", PATH, json.dumps({"spec": spec}).encode(), content="application/merge-patch+json")


def reported_status(api: Api, cluster: Cluster) -> dict[str, Any]:
    """Return the status after one run of the reporting task, merged with its condition."""
    report.run(cluster.pk)
    status: dict[str, Any] = json.loads(api.get(PATH))["status"]
    (condition,) = status.pop("conditions")
    assert condition["observedGeneration"] == status["observedGeneration"]
    return {**status, **{key: condition[key] for key in ("status", "reason", "message")}}


def accepted(generation: int) -> bool:
    return PolicyObject.objects.filter(name="dense", generation=generation, problem__isnull=True).exists()


def test_object_is_active_and_its_status_has_the_version(api: Api, cluster: Cluster, followed: Informer) -> None:
    make(api, SCHEDULING_POLICIES, "dense", spec=plugins("binpack"))
    eventually(followed, lambda: accepted(1))
    assert active_specs({"dense"})["dense"].plugins[1].name == "binpack"
    assert reported_status(api, cluster) == {
        "observedGeneration": 1, "version": 1, "status": "True", "reason": "Accepted", "message": "version 1 is active",
    }  # fmt: skip
    change(api, plugins("binpack", weight=3))
    eventually(followed, lambda: accepted(2))
    assert active_specs({"dense"})["dense"].plugins[1].weight == 3
    assert reported_status(api, cluster)["version"] == 2


def test_invalid_object_gets_its_field_and_the_valid_version_stays_active(
    api: Api, cluster: Cluster, followed: Informer
) -> None:
    make(api, SCHEDULING_POLICIES, "dense", spec=plugins("binpack"))
    eventually(followed, lambda: accepted(1))
    change(api, plugins("binpak"))
    eventually(followed, lambda: PolicyObject.objects.get().problem is not None)
    found = reported_status(api, cluster)
    assert (found["status"], found["reason"], found["version"]) == ("False", "PolicyPluginUnknown", 1)
    assert found["message"].startswith("spec.plugins[1]: there is no plugin 'binpak'")
    assert found["message"].endswith("; version 1 remains active")
    assert Policy.objects.get(name="dense").active_version == 1


def test_object_with_the_name_of_a_database_policy_is_rejected(api: Api, cluster: Cluster, followed: Informer) -> None:
    make(api, SCHEDULING_POLICIES, "hetsched", spec=plugins("binpack"))
    eventually(followed, lambda: PolicyObject.objects.filter(name="hetsched").exists())
    report.run(cluster.pk)
    status = json.loads(api.get(SCHEDULING_POLICIES.path(name="hetsched")))["status"]
    assert "version" not in status
    assert status["conditions"][0]["message"].startswith("metadata.name: policy hetsched is managed in the database")


def test_object_deleted_without_a_running_informer_leaves_its_version(
    api: Api, cluster: Cluster, followed: Informer
) -> None:
    make(api, SCHEDULING_POLICIES, "dense", spec=plugins("binpack"))
    eventually(followed, lambda: accepted(1))
    followed.ended.set()
    following.release(followed.lease)
    api.send("DELETE", PATH)
    follower = an_informer(api, cluster)
    eventually(follower, lambda: PolicyObject.objects.get().gone)
    assert Policy.objects.get(name="dense").active_version == 1
    make(api, SCHEDULING_POLICIES, "dense", spec=plugins("least-allocated"))
    eventually(follower, lambda: not PolicyObject.objects.get().gone)
    assert reported_status(api, cluster)["version"] == 2
    follower.ended.set()


def test_pod_may_precede_its_policy(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_node(api, "n1")
    make_pod(api, "early", schedulerName="hetsched-dense")
    eventually(followed, lambda: states() == {"early": "pending"} and Node.objects.count() == 1)
    followed._write_sync()
    schedule.run(cluster.pk)
    assert states() == {"early": "misconfigured"}
    make(api, SCHEDULING_POLICIES, "dense", spec=plugins("binpack"))
    eventually(followed, lambda: states() == {"early": "pending"})
    schedule.run(cluster.pk)
    assert states() == {"early": "placed"}
    decision = Decision.objects.latest("id")
    assert (decision.policy_name, decision.policy_version) == ("dense", 1)
