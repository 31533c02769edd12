"""A cluster's object becomes versions; an invalid one never replaces a valid one; only an action changes the owner."""

from __future__ import annotations

import pytest

from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.message import Message
from hetsched.contracts.objects.observed import ObservedPolicy
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.inventory.node_loads import Conflict
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import AuditEntry
from hetsched.policies.actions import activate, ensure_builtins, rollback, save_draft
from hetsched.policies.cluster_policies import apply_policy_objects, set_owner
from hetsched.policies.effective import active_specs
from hetsched.policies.models import Policy, PolicyObject
from tests.situations import ALICE

pytestmark = pytest.mark.django_db
EPOCH = 3


def live(name: str) -> Cluster:
    cluster = create_cluster(name=name, kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=cluster, follower_epoch=EPOCH)
    return cluster


@pytest.fixture
def west(db: None) -> Cluster:
    return live("west")


def spec(weight: float = 1.0, plugin: str = "least-allocated", name: str = "mine") -> PolicySpec:
    return PolicySpec(name, (PluginUse("resource-fit"), PluginUse(plugin, weight)))


def see(cluster: Cluster, content: PolicySpec | None, generation: int = 1, **more: object) -> list[str]:
    observed = ObservedPolicy("mine", "uid", generation, content, **more)  # type: ignore[arg-type]
    return apply_policy_objects(cluster.pk, [observed], epoch=EPOCH)


def decides(name: str = "mine") -> tuple[int, float]:
    """Return the active version and the weight of its score plugin."""
    found = active_specs({name})[name]
    return found.version, found.plugins[1].weight


def problem_in(cluster: Cluster) -> Problem | None:
    return PolicyObject.objects.get(cluster=cluster, name="mine").problem


def test_each_new_content_is_a_version_that_decides(west: Cluster) -> None:
    assert see(west, spec(1.0)) == ["mine"]
    assert decides() == (1, 1.0)
    assert Policy.objects.get(name="mine").keeper == west
    assert see(west, spec(2.0), 2) == ["mine"]
    assert decides() == (2, 2.0)
    entry = AuditEntry.objects.filter(action="policy.activate", object_name="mine").first()
    assert entry is not None
    assert (entry.actor, entry.reason) == ("cluster west", "generation 2 of the object in cluster west")


def test_repeated_content_is_no_new_version(west: Cluster) -> None:
    see(west, spec())
    PolicyObject.objects.update(reported=True)
    assert see(west, spec()) == []
    assert PolicyObject.objects.get().reported
    assert see(west, spec(), 2) == ["mine"]  # another generation of the same content is only acknowledged
    assert (decides(), PolicyObject.objects.get().reported) == ((1, 1.0), False)


def test_invalid_object_is_rejected_and_the_valid_version_stays(west: Cluster) -> None:
    see(west, spec())
    see(west, spec(plugin="no-such-plugin"), 2)
    found = problem_in(west)
    assert found is not None
    assert (found.code, found.field) == ("PolicyPluginUnknown", "spec.plugins[1]")
    assert decides() == (1, 1.0)
    unreadable = Problem("PolicyMalformed", "spec.plugins", Message("must have at least one plugin"))
    see(west, None, 3, problem=unreadable)
    assert problem_in(west) == unreadable
    assert decides() == (1, 1.0)
    see(west, spec(4.0), 4)
    assert (problem_in(west), decides()) == (None, (2, 4.0))


def test_rejected_object_creates_no_policy(west: Cluster) -> None:
    see(west, spec(plugin="no-such-plugin"))
    assert not Policy.objects.filter(name="mine").exists()


def test_database_owned_name_is_rejected_until_the_takeover(west: Cluster) -> None:
    save_draft(spec(5.0), actor=ALICE)
    activate("mine", 1, actor=ALICE, reason="first")
    see(west, spec(1.0))
    found = problem_in(west)
    assert found is not None
    assert (found.code, found.field) == ("PolicyNameTaken", "metadata.name")
    assert found.message.startswith("policy mine is managed in the database")
    assert decides() == (1, 5.0)
    set_owner("mine", west, actor=ALICE, reason="into git")
    assert (problem_in(west), decides()) == (None, (2, 1.0))


def test_first_cluster_keeps_a_name_until_an_action_changes_it(west: Cluster) -> None:
    east = live("east")
    see(west, spec(1.0))
    see(east, spec(2.0))
    found = problem_in(east)
    assert found is not None
    assert "cluster west" in found.message
    apply_policy_objects(west.pk, [ObservedPolicy("mine", gone=True)], epoch=EPOCH)
    see(east, spec(3.0), 2)
    assert decides() == (1, 1.0)
    set_owner("mine", east, actor=ALICE, reason="moved")
    assert decides() == (2, 3.0)


def test_deleted_object_leaves_its_version(west: Cluster) -> None:
    see(west, spec())
    assert apply_policy_objects(west.pk, [], epoch=EPOCH, listed=()) == ["mine"]
    assert (decides(), PolicyObject.objects.get().gone) == ((1, 1.0), True)
    with pytest.raises(InputError, match="PolicyKeptInCluster"):
        save_draft(spec(2.0), actor=ALICE)
    see(west, spec(3.0), 1)
    assert (decides(), PolicyObject.objects.get().gone) == ((2, 3.0), False)


def test_cluster_owned_policy_is_not_written_before_a_takeover(west: Cluster) -> None:
    see(west, spec(1.0))
    see(west, spec(2.0), 2)
    for act in (
        lambda: save_draft(spec(9.0), actor=ALICE),
        lambda: activate("mine", 1, actor=ALICE, reason="x"),
        lambda: rollback("mine", actor=ALICE, reason="x"),
    ):
        with pytest.raises(InputError, match="managed by the SchedulingPolicy of this name in cluster west") as refused:
            act()
        assert refused.value.code == "PolicyKeptInCluster"
    set_owner("mine", None, actor=ALICE, reason="the cluster is lost")
    rollback("mine", actor=ALICE, reason="better")
    assert decides() == (1, 1.0)
    found = problem_in(west)
    assert found is not None
    assert found.code == "PolicyNameTaken"
    see(west, spec(7.0), 3)
    assert decides() == (1, 1.0)


def test_invalid_object_cannot_take_over_a_policy(west: Cluster) -> None:
    save_draft(spec(5.0), actor=ALICE)
    with pytest.raises(InputError, match="PolicyObjectMissing"):
        set_owner("mine", west, actor=ALICE, reason="into git")
    see(west, spec(plugin="no-such-plugin"))
    with pytest.raises(InputError, match="PolicyPluginUnknown"):
        set_owner("mine", west, actor=ALICE, reason="into git")
    assert Policy.objects.get(name="mine").keeper is None


def test_built_in_policies_of_a_release_keep_cluster_owned_ones(west: Cluster) -> None:
    content = spec(3.0, name="spread")
    apply_policy_objects(west.pk, [ObservedPolicy("spread", "uid", 1, content)], epoch=EPOCH)
    assert "spread" not in ensure_builtins()
    assert decides("spread") == (1, 3.0)


def test_replaced_informer_writes_nothing(west: Cluster) -> None:
    with pytest.raises(Conflict):
        apply_policy_objects(west.pk, [ObservedPolicy("mine", "uid", 1, spec())], epoch=EPOCH - 1)
    assert not PolicyObject.objects.exists()
