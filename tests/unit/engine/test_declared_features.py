"""The declared-features plugin: a node declares each kubelet feature that the pod uses."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.contracts.objects.node_features import (
    REQUIRED_BY,
    RESTART_ALL_CONTAINERS,
    USER_NAMESPACES_HOST_NETWORK,
    VOLUME_BIND_MOUNT_OPTIONS,
)
from hetsched.contracts.waits import Event
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.explain.nearest_fit import nearest_fit
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.queueing_hints import differences
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import ask, scheduler

FLEET = [
    a_node("old"),
    a_node("restarts").having(declared_features=(RESTART_ALL_CONTAINERS,)),
    a_node("all").having(declared_features=tuple(REQUIRED_BY)),
]


@pytest.mark.parametrize(
    ("required", "feasible"),
    [
        ((RESTART_ALL_CONTAINERS,), ["all", "restarts"]),
        ((USER_NAMESPACES_HOST_NETWORK,), ["all"]),
        ((RESTART_ALL_CONTAINERS, VOLUME_BIND_MOUNT_OPTIONS), ["all"]),
    ],
)
def test_only_nodes_that_declare_all_required_features_fit(required: tuple[str, ...], feasible: list[str]) -> None:
    answer = ask("declared-features", a_pod().shaped(node_features=required), FLEET)
    assert answer.feasible == feasible
    assert set(answer.codes("old")) == {"NodeFeatureMissing"}
    assert [refusal.missing for refusal in answer.reasons["old"]] == [(name,) for name in required]
    assert not any(refusal.resolvable for refusal in answer.reasons["old"])


def test_pod_without_required_features_is_not_filtered() -> None:
    assert ask("declared-features", a_pod(), FLEET).skipped


def test_rejected_pod_is_retried_when_a_node_declares_another_feature() -> None:
    deciding = scheduler(FLEET[:1])
    pod = a_pod().shaped(node_features=(RESTART_ALL_CONTAINERS,)).build()
    assert deciding.schedule(pod).node is None
    [wait] = diagnose(deciding, pod).waits_for
    assert (wait.plugin, set(wait.events)) == ("declared-features", {Event.NODE_ADDED, Event.NODE_FEATURES})
    assert wait.text == f"a node that declares {RESTART_ALL_CONTAINERS}"
    before = deciding.state.reports[0]
    after = msgspec.structs.replace(before, declared_features=(RESTART_ALL_CONTAINERS,))
    assert differences(before, after) == {Event.NODE_FEATURES}
    deciding.state.apply_report(after)
    assert deciding.schedule(pod).node == "old"


def test_nearest_fit_names_the_fields_that_require_features() -> None:
    pod = a_pod().shaped(node_features=(USER_NAMESPACES_HOST_NETWORK, VOLUME_BIND_MOUNT_OPTIONS)).build()
    declared = a_node("old").having(declared_features=(VOLUME_BIND_MOUNT_OPTIONS,))
    fits = nearest_fit(scheduler([declared]), pod)
    assert fits[0].change == "remove spec.hostUsers, which requires UserNamespacesHostNetworkSupport"
    fits = nearest_fit(scheduler(FLEET[:1]), pod)
    assert fits[0].change.endswith("which requires UserNamespacesHostNetworkSupport, VolumeBindMountOptions")


def test_every_built_in_policy_checks_features() -> None:
    for policy in BUILTIN.values():
        assert "declared-features" in [use.name for use in policy.plugins], policy.name
