"""Pods without an instruction-set request are placed only on nodes that run their images.

Real here: the API server, with nodes of three architectures and RBAC, and a registry on loopback.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.connections.access_review import PULL_RIGHTS, SECRETS, ask
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.inventory.models import Cluster, Connection, ImageIndex, Node
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube import access
from tests.kube.control_plane import ControlPlane
from tests.kube.scene import an_informer, eventually, make, make_node, make_pod, pod_of, states
from tests.registry import Registry, a_registry
from workers import images, schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
ARCHITECTURES = ("arm64", "riscv64", "amd64")  # in name order the amd64 nodes would be chosen last


@pytest.fixture
def registry(settings: Any) -> Iterator[Registry]:
    with a_registry() as served:
        settings.HETSCHED_PLAIN_REGISTRIES = [served.host]
        settings.HETSCHED_IMAGE_WAIT_SECONDS = 600
        yield served


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with two nodes of each architecture."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    for position, arch in enumerate(2 * ARCHITECTURES):
        make_node(api, f"n{position}-{arch}", **{"kubernetes.io/arch": arch})
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 6)
    follower._write_sync()
    yield follower
    follower.ended.set()


def with_image(*names: str) -> dict[str, Any]:
    """Return containers with these images, all but the first of them init containers."""
    containers = [
        {"name": f"c{number}", "image": name, "resources": {"requests": {"cpu": "500m"}}}
        for number, name in enumerate(names)
    ]
    return {"containers": containers[:1], "initContainers": containers[1:]}


def arch_of(api: Api, name: str) -> str:
    return str(pod_of(api, name)["spec"].get("nodeName", "")).partition("-")[2]


def test_unlabelled_pod_runs_only_on_platforms_of_its_image(
    api: Api, cluster: Cluster, followed: Informer, registry: Registry
) -> None:
    amd = registry.image("amd:1", "linux/amd64", "unknown/unknown")
    everywhere = registry.image("everywhere:1", *(f"linux/{arch}" for arch in ARCHITECTURES))
    both = registry.image("both:1", "linux/amd64", "linux/riscv64")
    riscv = registry.single("riscv:1", "linux/riscv64")
    # More than the two amd64 nodes can hold: 16 CPUs for 40 pods of half a CPU.
    for number in range(40):
        make_pod(api, f"amd-{number:02d}", **with_image(amd))
    make_pod(api, "late-init", **with_image(everywhere, riscv))
    make_pod(api, "common", **with_image(both, riscv))
    make_pod(api, "nowhere", **with_image(amd, riscv))
    make_pod(api, "anywhere", **with_image(everywhere))
    eventually(followed, lambda: len(states()) == 44)
    followed._write_sync()
    # Nothing is decided before the image indexes are read; then all pods are.
    assert schedule.run(cluster.pk) == 0
    assert images.run(cluster.pk) == 4
    followed._write_sync()
    assert schedule.run(cluster.pk) == 44
    assert binding_cycle.run(cluster.pk) == 35
    placed = {arch_of(api, f"amd-{number:02d}") for number in range(40)}
    assert placed == {"amd64", ""}
    assert sum(state == "not-now" for state in states().values()) == 8
    assert (arch_of(api, "late-init"), arch_of(api, "common")) == ("riscv64", "riscv64")
    assert arch_of(api, "anywhere") in ARCHITECTURES
    assert states()["nowhere"] == "never-fits"
    assert [reason.code for reason in Decision.objects.get(pod__name="nowhere").reasons] == ["ImagesDisagree"]
    refused = Decision.objects.filter(pod__state="not-now").first()
    assert refused is not None
    messages = {reason.code: reason.message for reason in refused.reasons}
    assert messages["ImagePlatformMissing"].startswith("the pod's images are built for amd64, but the node is ")
    assert check_invariants() == []


def test_late_image_index_applies_to_pending_pods(
    api: Api, cluster: Cluster, followed: Informer, registry: Registry
) -> None:
    name = f"{registry.host}/late:1"
    make_pod(api, "late", **with_image(name))
    eventually(followed, lambda: states() == {"late": "pending"})
    followed._write_sync()
    images.run(cluster.pk)
    assert "has no such image" in Pod.objects.get().spec.image_facts[0].unknown
    registry.image("late:1", "linux/riscv64")
    ImageIndex.objects.update(not_before=timezone.now())
    assert images.run(cluster.pk) == 1
    followed._write_sync()
    assert schedule.run(cluster.pk) == 1
    assert binding_cycle.run(cluster.pk) == 1
    assert arch_of(api, "late") == "riscv64"


def test_pull_secrets_are_read_only_with_a_role(
    api: Api, plane: ControlPlane, cluster: Cluster, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = registry.image("private:1", "linux/riscv64")
    registry.wants_token, registry.user = True, "ann:secret-canary"
    held = {"auths": {registry.host: {"username": "ann", "password": "secret-canary"}}}
    data = {".dockerconfigjson": base64.b64encode(json.dumps(held).encode()).decode()}
    make(api, SECRETS, "pull", "default", type="kubernetes.io/dockerconfigjson", data=data)
    bindings = f"{access.RBAC}/namespaces/default/rolebindings"
    try:
        with access.granted(plane) as account:
            ours = Api(from_kubeconfig(account))
            monkeypatch.setattr(images, "api_of", lambda _: ours)
            Connection.objects.update(read_pull_secrets=True)
            make_pod(api, "private", imagePullSecrets=[{"name": "pull"}], **with_image(name))
            follower = an_informer(api, cluster)
            eventually(follower, lambda: states() == {"private": "pending"})
            images.run(cluster.pk)
            assert "pull secret default/pull could not be read" in ImageIndex.objects.get().message
            assert [answer.granted for answer in ask(ours, namespaces=["default"], rights=PULL_RIGHTS)] == [False]
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "hetsched-pull-secrets"}
            subject = {"kind": "ServiceAccount", "name": "hetsched", "namespace": access.NAMESPACE}
            plane.call("POST", bindings, {"metadata": {"name": "pull-secrets"}, "subjects": [subject], "roleRef": role})
            eventually(follower, lambda: may_read(ours))
            ImageIndex.objects.update(not_before=timezone.now())
            assert images.run(cluster.pk) == 1
            follower.ended.set()
            assert ImageIndex.objects.get().platforms == ["linux/riscv64"]
            with pytest.raises(ApiFailure) as refused:
                ours.get(SECRETS.path(namespace="kube-system", name="pull"))
            assert refused.value.status == 403
            plane.call("DELETE", f"{bindings}/pull-secrets")
    finally:
        api.send("DELETE", SECRETS.path(namespace="default", name="pull"))


def may_read(ours: Api) -> bool:
    """Return whether the role has taken effect."""
    (answer,) = ask(ours, namespaces=["default"], rights=PULL_RIGHTS)
    return answer.granted


def test_manifest_grants_the_rights_of_the_table() -> None:
    (rule,) = access.rules_of("hetsched-pull-secrets")
    (right,) = PULL_RIGHTS
    assert rule == {
        "apiGroups": [right.resource.group], "resources": [right.resource.plural], "verbs": [right.verb]
    }  # fmt: skip
