"""Images of pending pods: a worker reads and stores their platforms, adds them to the pods' requests, retries failures.

Real here: a registry on loopback. Faked: the broker (wake-ups are recorded, tasks are called).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.contracts.objects.workload import ImageDemand
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection, ImageIndex, Sync
from hetsched.journal.audit import SYSTEM
from hetsched.placement import dispatch
from hetsched.placement.actions import apply_changes
from hetsched.placement.actions.image_platforms import KEPT, due_images, prune_images, with_known_facts
from hetsched.placement.models import Decision, Pod
from hetsched.placement.scheduling_queue.active_queue import active_pods
from tests.builders import a_node, a_pod
from tests.registry import Registry, a_registry
from workers import images, schedule, sweep

pytestmark = pytest.mark.django_db
AMD = ImageDemand((("amd64", "x86-64-v1"),))


@pytest.fixture(autouse=True)
def woken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    sent: list[str] = []
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: sent.append(task))
    return sent


@pytest.fixture
def registry(settings: Any) -> Iterator[Registry]:
    with a_registry() as served:
        settings.HETSCHED_PLAIN_REGISTRIES = [served.host]
        settings.HETSCHED_IMAGE_WAIT_SECONDS = 600
        yield served


@pytest.fixture
def cluster(builtins: None) -> Cluster:
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    apply_changes(made.pk, Changes(nodes=[a_node("n1").build()]), epoch=1)
    return made


def comes(cluster: Cluster, name: str, *names: str, **fields: Any) -> Pod:
    """Add a pending pod with these images; return its row."""
    spec = a_pod(name).having(images=names, uid=name, **fields).build()
    seen = ObservedPod("default", name, name, scheduler_name="hetsched", spec=spec)
    apply_changes(cluster.pk, Changes(pods=[seen]), epoch=1)
    return Pod.objects.get(cluster=cluster, name=name)


def demand(name: str) -> ImageDemand | None:
    isa = Pod.objects.get(name=name).spec.shape.isa
    return isa.images if isa else None


def later(**columns: Any) -> None:
    """Make all image reads due again."""
    ImageIndex.objects.update(not_before=timezone.now() - timedelta(seconds=1), **columns)


def test_pod_is_decided_after_its_image_index_is_read(cluster: Cluster, registry: Registry, woken: list[str]) -> None:
    name = registry.image("app:1", "linux/amd64")
    comes(cluster, "p", name)
    assert dispatch.IMAGES in woken
    assert not active_pods(cluster.pk).exists()
    woken.clear()
    assert images.run(cluster.pk) == 1
    assert demand("p") == AMD
    assert [pod.name for pod in active_pods(cluster.pk)] == ["p"]
    assert dispatch.SCHEDULE in woken
    (row,) = ImageIndex.objects.all()
    assert (row.reference, row.platforms, row.code) == (name, ["linux/amd64"], "")
    assert row.digest.startswith("sha256:")
    # The next pod finds the image in the cache, and is due immediately.
    comes(cluster, "q", name)
    assert demand("q") == AMD
    assert active_pods(cluster.pk).count() == 2
    assert not due_images(cluster.pk).exists()


def test_unreadable_image_is_unknown_with_the_reason_and_retried(cluster: Cluster, registry: Registry) -> None:
    name = f"{registry.host}/app:1"
    comes(cluster, "p", name)
    assert images.run(cluster.pk) == 0
    assert demand("p") == ImageDemand(None, unknown=True)
    assert "has no such image" in Pod.objects.get().spec.image_facts[0].unknown
    assert active_pods(cluster.pk).exists()  # no longer waits for images
    asked = len(registry.asked)
    images.run(cluster.pk)
    assert len(registry.asked) == asked  # not due yet
    row = ImageIndex.objects.get()
    assert row.not_before > timezone.now()
    registry.image("app:1", "linux/amd64")
    Pod.objects.update(queued=False)
    later()
    assert images.run(cluster.pk) == 1
    assert demand("p") == AMD
    assert active_pods(cluster.pk).exists()


def test_backoff_grows_and_retry_after_is_respected(cluster: Cluster, registry: Registry) -> None:
    comes(cluster, "p", f"{registry.host}/app:1")
    for seconds in (30, 60, 120):
        before = timezone.now()
        images.run(cluster.pk)
        pause = timedelta(seconds=seconds)
        assert before + pause <= ImageIndex.objects.get().not_before <= timezone.now() + pause
        later()
    registry.status, registry.headers = 429, {"Retry-After": "3000"}
    before = timezone.now()
    images.run(cluster.pk)
    assert ImageIndex.objects.get().not_before >= before + timedelta(seconds=3000)


def test_wait_for_images_is_bounded(cluster: Cluster, registry: Registry, settings: Any) -> None:
    settings.HETSCHED_IMAGE_WAIT_SECONDS = 0
    comes(cluster, "p", registry.image("app:1", "linux/amd64"))
    assert active_pods(cluster.pk).exists()
    assert demand("p") == ImageDemand(None, unknown=True)
    # It is decided without the index, waits for something else, and the index arrives later.
    Pod.objects.update(queued=False, state="not-now", not_before=timezone.now() + timedelta(hours=1))
    images.run(cluster.pk)
    assert demand("p") == AMD
    assert active_pods(cluster.pk).exists()


def test_tag_is_read_again_for_pending_pods_and_a_digest_never(cluster: Cluster, registry: Registry) -> None:
    name = registry.image("app:1", "linux/amd64")
    comes(cluster, "tagged", name)
    images.run(cluster.pk)
    digest = f"{registry.host}/app@{ImageIndex.objects.get().digest}"
    comes(cluster, "fixed", digest)
    images.run(cluster.pk)
    registry.image("app:1", "linux/amd64", "linux/arm64")
    later()
    registry.asked.clear()
    images.run(cluster.pk)
    assert [path for path, _ in registry.asked] == ["/v2/app/manifests/1"]
    assert demand("tagged") == ImageDemand((("amd64", "x86-64-v1"), ("arm64", "armv8.0-a")))
    assert demand("fixed") == AMD
    # No pod waits for the image any more: it is not read until another pod names it.
    Pod.objects.update(state="cancelled", queued=False)
    later()
    images.run(cluster.pk)
    assert not due_images(cluster.pk).exists()
    comes(cluster, "again", name)
    assert due_images(cluster.pk).exists()


def test_cached_platforms_apply_while_a_registry_is_unavailable(cluster: Cluster, registry: Registry) -> None:
    name = registry.image("app:1", "linux/amd64")
    comes(cluster, "p", name)
    images.run(cluster.pk)
    registry.status = 500
    later()
    images.run(cluster.pk)
    row = ImageIndex.objects.get()
    assert (row.code, row.platforms) == ("RegistryFailed", ["linux/amd64"])
    assert demand("p") == AMD


def test_unlisted_registries_are_not_called(cluster: Cluster, settings: Any, registry: Registry) -> None:
    comes(cluster, "p", "other.example/app:1", "no name")
    assert [facts.unknown for facts in Pod.objects.get().spec.image_facts] == [
        "this server is not allowed to read from other.example",
        "'no name' is not a valid image name",
    ]
    assert active_pods(cluster.pk).exists()
    assert not ImageIndex.objects.exists()
    settings.HETSCHED_PLAIN_REGISTRIES = []
    comes(cluster, "q", f"{registry.host}/app:1")
    assert Pod.objects.get(name="q").spec.image_facts == ()
    assert demand("q") is None


def test_repeated_event_changes_nothing(cluster: Cluster, registry: Registry) -> None:
    name = registry.image("app:1", "linux/amd64")
    comes(cluster, "p", name)
    images.run(cluster.pk)
    Pod.objects.update(queued=False)
    comes(cluster, "p", name)
    assert demand("p") == AMD
    assert not Pod.objects.get().queued
    # Its gates are removed: its requests change, and its image requirements stay.
    comes(cluster, "p", name, priority=7)
    assert (demand("p"), Pod.objects.get().priority) == (AMD, 7)


def test_pull_secrets_are_read_only_where_the_connection_says_so(
    cluster: Cluster, registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Secrets:
        def get(self, path: str) -> bytes:
            assert path == "/api/v1/namespaces/default/secrets/pull"
            return json.dumps({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": held}}).encode()

    held = b64({"auths": {registry.host: {"username": "ann", "password": "secret-canary"}}})
    monkeypatch.setattr(images, "api_of", lambda _: Secrets())
    name = registry.image("app:1", "linux/amd64")
    registry.wants_token, registry.user = True, "ann:secret-canary"
    comes(cluster, "p", name, pull_secrets=("pull",))
    images.run(cluster.pk)
    assert ImageIndex.objects.get().code == "RegistryRefused"
    Connection.objects.update(read_pull_secrets=True)
    later()
    images.run(cluster.pk)
    assert demand("p") == AMD
    kept = repr(list(ImageIndex.objects.values())) + caplog.text + repr(list(Pod.objects.values("spec")))
    assert "canary" not in kept


def b64(document: Any) -> str:
    return base64.b64encode(json.dumps(document).encode()).decode()


def test_sweep_recovers_a_lost_wake_up(cluster: Cluster, registry: Registry, woken: list[str]) -> None:
    comes(cluster, "p", registry.image("app:1", "linux/amd64"))
    woken.clear()
    sweep.run()
    assert dispatch.IMAGES in woken
    images.run(cluster.pk)
    woken.clear()
    sweep.run()
    assert dispatch.IMAGES not in woken


def test_what_if_uses_known_images_and_calls_no_registry(cluster: Cluster, registry: Registry) -> None:
    comes(cluster, "p", registry.image("app:1", "linux/amd64"))
    images.run(cluster.pk)
    pods = [a_pod(name).having(images=(f"{registry.host}/{name}:1",)).build() for name in ("app", "other")]
    known, unknown = with_known_facts(cluster, pods)
    assert known.shape.isa is not None
    assert known.shape.isa.images == AMD
    assert unknown.image_facts[0].unknown == "the image index has not been read yet"
    assert ImageIndex.objects.count() == 1


def test_decision_without_an_index_is_marked(cluster: Cluster, registry: Registry) -> None:
    comes(cluster, "p", f"{registry.host}/app:1")
    images.run(cluster.pk)
    Connection.objects.update(follower_epoch=1)
    Sync.objects.create(cluster=cluster, resource="pods", epoch=1, synced_at=timezone.now(), alive_at=timezone.now())
    assert schedule.run(cluster.pk) == 1
    decision = Decision.objects.get()
    assert decision.verdict == "placed"
    assert f"the platforms of {registry.host}/app:1 are unknown: {registry.host} has no such image" in decision.summary


def test_images_unused_for_long_are_deleted(cluster: Cluster, registry: Registry) -> None:
    comes(cluster, "p", registry.image("app:1", "linux/amd64"))
    prune_images(cluster.pk)
    assert ImageIndex.objects.exists()
    ImageIndex.objects.update(wanted_at=timezone.now() - KEPT - timedelta(days=1))
    prune_images(cluster.pk)
    assert not ImageIndex.objects.exists()


def test_image_with_variants_only_has_a_warning(cluster: Cluster, registry: Registry) -> None:
    apply_changes(cluster.pk, Changes(nodes=[a_node("new").isa("x86-64-v4").build()]), epoch=1)
    comes(cluster, "p", registry.image("app:1", "linux/amd64/v3"))
    images.run(cluster.pk)
    Connection.objects.update(follower_epoch=1)
    Sync.objects.create(cluster=cluster, resource="pods", epoch=1, synced_at=timezone.now(), alive_at=timezone.now())
    assert schedule.run(cluster.pk) == 1
    decision = Decision.objects.get()
    warning = (
        f"containerd with default settings rejects {registry.host}/app:1 on this node: "
        "its index has only CPU variants of amd64"
    )
    assert (decision.verdict, decision.node_name) == ("placed", "new")
    assert decision.allocation.isa.warnings == (warning,)
    assert warning in decision.summary
