"""Resolution of image platforms, which become part of the requests of pending pods.

A pod must not wait long for a registry, and must not be placed on a node that its image does not support.
Only live clusters and only registries named by the deployment are covered. An arriving pod gets the known facts of its
images. If a fact is unknown, the pod waits for at most `HETSCHED_IMAGE_WAIT_SECONDS` and is then scheduled with the
fact as unknown. A worker reads due images outside any transaction and writes the result into the pending pods, which
are then scheduled again. Decisions in progress on the earlier facts become void. Failed reads are retried after 30 s, 1
min, 2 min and so on, up to one hour.
Invariant: an image is read only if a pending pod uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import msgspec
from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from hetsched.adapters.oci.facts import NO_PLATFORM, with_facts
from hetsched.adapters.oci.reference import Reference, parse_reference
from hetsched.adapters.oci.wire import AllowedHosts
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, as_message
from hetsched.contracts.objects.workload import ImageFacts, PodSpec
from hetsched.inventory.models import Cluster, ClusterKind, ImageIndex
from hetsched.inventory.node_loads import advance, write_columns
from hetsched.placement.lifecycle import QUEUED
from hetsched.placement.models import Pod
from hetsched.placement.queries.images import stored_reference
from hetsched.storage.batches import batched
from hetsched.storage.write_lock import write_transaction

from .. import dispatch
from .change import ClusterTransaction

CLAIM = timedelta(seconds=120)  # longer than reading an image takes
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 30, 3600
MOST_SECRETS = 20
KEPT = timedelta(days=30)
_NOT_ALLOWED = "this server is not allowed to read from {host}"
_NOT_YET = "the image index has not been read yet"
_QUEUED = sorted(state.value for state in QUEUED)


class ImageReading(msgspec.Struct, frozen=True):
    """The result of reading an image: a digest and platforms, or an error code and message."""

    digest: str = ""
    platforms: tuple[str, ...] = ()
    code: str = ""
    message: str = ""
    wait_seconds: float = 0.0


def allowed_registries() -> AllowedHosts:
    """Return the registries that this deployment reads."""
    return AllowedHosts(frozenset(settings.HETSCHED_REGISTRIES), frozenset(settings.HETSCHED_PLAIN_REGISTRIES))


def with_known_facts(cluster: Cluster, pods: Sequence[PodSpec]) -> list[PodSpec]:
    """Return pods with the known facts of their images, without writing rows or requesting reads."""
    registries = allowed_registries()
    if cluster.kind != ClusterKind.KUBERNETES or not registries:
        return list(pods)
    return [pod for pod, _ in _Images(cluster, registries, pods, asks=False).put()]


def add_image_facts(cluster: Cluster, pods: Sequence[PodSpec]) -> list[tuple[PodSpec, datetime | None]]:
    """Return pods with the known facts of their images, and the time until which each pod waits for unknown facts.

    Once this time has passed, the pod can be scheduled, but its facts may still change. A time of None means that the
    facts are final.
    """
    registries = allowed_registries()
    if cluster.kind != ClusterKind.KUBERNETES or not registries:
        return [(pod, None) for pod in pods]
    return _Images(cluster, registries, pods).put()


class _Images:
    """The images of some pods and their known facts; with `asks`, reads of unknown and due images are requested."""

    def __init__(
        self, cluster: Cluster, registries: AllowedHosts, pods: Sequence[PodSpec], *, asks: bool = True
    ) -> None:
        self.cluster = cluster
        self.pods = pods
        self.now = timezone.now()
        self.references: dict[str, Reference] = {}
        self.facts: dict[str, ImageFacts] = {}
        for image in dict.fromkeys(image for pod in pods for image in pod.images):
            self._name(image, registries)
        self.names = sorted({str(reference) for reference in self.references.values()})
        self.rows: dict[str, ImageIndex] = {}
        for some in batched(self.names):
            known = ImageIndex.objects.filter(cluster=cluster, reference__in=some)
            self.rows |= {row.reference: row for row in known}
        if asks:
            self._ask()

    def _name(self, image: str, registries: AllowedHosts) -> None:
        try:
            reference = parse_reference(image)
        except InputError as error:
            self.facts[image] = ImageFacts(image, unknown=error.message)
            return
        if registries.reads(reference.host):
            self.references[image] = reference
        else:
            self.facts[image] = ImageFacts(image, unknown=Message(_NOT_ALLOWED, host=reference.host))

    def _ask(self) -> None:
        """Insert rows for unknown images; request another read of each known image whose read is due."""
        secrets = self._secrets()
        new = [
            ImageIndex(
                cluster=self.cluster, reference=name, wanted_at=self.now, not_before=self.now, secrets=secrets[name]
            )
            for name in self.names
            if name not in self.rows
        ]
        ImageIndex.objects.bulk_create(new, batch_size=500, ignore_conflicts=True)
        asked = [row for row in self.rows.values() if self._needs_update(row, secrets[row.reference])]
        for row in asked:
            row.wanted, row.wanted_at = True, self.now
            row.secrets = list(dict.fromkeys([*secrets[row.reference], *row.secrets]))[:MOST_SECRETS]
        ImageIndex.objects.bulk_update(asked, ("wanted", "wanted_at", "secrets"), batch_size=500)
        if new or any(row.wanted and row.not_before <= self.now for row in self.rows.values()):
            dispatch.wake(self.cluster.pk, dispatch.IMAGES)

    def _needs_update(self, row: ImageIndex, secrets: list[str]) -> bool:
        """Return True if a row needs an update: it must be read again, has a new secret or was last used a day ago."""
        reread = not row.wanted and not _is_final(row)
        return reread or not set(secrets) <= set(row.secrets) or row.wanted_at < self.now - timedelta(days=1)

    def _secrets(self) -> dict[str, list[str]]:
        found: dict[str, dict[str, None]] = {str(reference): {} for reference in self.references.values()}
        for pod in self.pods:
            for image in pod.images:
                if image in self.references:
                    named = (f"{pod.namespace}/{name}" for name in pod.pull_secrets)
                    found[str(self.references[image])].update(dict.fromkeys(named))
        return {name: list(secrets)[:MOST_SECRETS] for name, secrets in found.items()}

    def put(self) -> list[tuple[PodSpec, datetime | None]]:
        by_image = {image: self.rows.get(str(reference)) for image, reference in self.references.items()}
        known = self.facts | {image: _facts(image, row) for image, row in by_image.items()}
        until = self.now + timedelta(seconds=settings.HETSCHED_IMAGE_WAIT_SECONDS)
        found: list[tuple[PodSpec, datetime | None]] = []
        for pod in self.pods:
            rows = [by_image[image] for image in pod.images if image in by_image]
            waits = any(not _is_settled(row, self.now) for row in rows)
            open_ones = any(not _is_final(row) for row in rows)
            found.append((with_facts(pod, known), until if waits else self.now if open_ones else None))
        return found


def _facts(image: str, row: ImageIndex | None) -> ImageFacts:
    if row is not None and row.read_at is not None:
        return ImageFacts(image, tuple(row.platforms), unknown=Message("" if row.platforms else NO_PLATFORM))
    return ImageFacts(image, unknown=as_message((row.message if row else "") or _NOT_YET))


def _is_final(row: ImageIndex | None) -> bool:
    """Return True if the facts are final: the image is named by digest and was read."""
    return row is not None and row.read_at is not None and "@" in row.reference


def _is_settled(row: ImageIndex | None, now: datetime) -> bool:
    """Return True if no pod has to wait for the image: its facts are final, or a read was attempted recently."""
    if row is None:
        return False
    return _is_final(row) or (row.not_before > now and (row.read_at is not None or bool(row.code)))


# -- reading -----------------------------------------------------------------------------------------------------------


def due_images(cluster_id: int) -> QuerySet[ImageIndex]:
    """Return the images that are due to be read; none if this deployment reads no registry."""
    if not allowed_registries():
        return ImageIndex.objects.none()
    return ImageIndex.objects.filter(cluster_id=cluster_id, wanted=True, not_before__lte=timezone.now())


def claim_images(cluster_id: int, limit: int) -> list[ImageIndex]:
    """Claim due images so that no other worker reads them; skip images that no pending pod uses."""
    rows = list(due_images(cluster_id).order_by("not_before", "id")[:limit])
    again = [row for row in rows if row.read_at is not None or row.attempts]
    if again:
        idle = _release(cluster_id, again)
        rows = [row for row in rows if row.pk not in idle]
    until = timezone.now() + CLAIM
    mine = ImageIndex.objects.filter(wanted=True)
    return [row for row in rows if mine.filter(pk=row.pk, not_before=row.not_before).update(not_before=until)]


def _release(cluster_id: int, rows: Sequence[ImageIndex]) -> set[int]:
    """Stop reading those images that no pending pod uses, and return their ids; a later pod requests a read again."""
    with write_transaction():
        Cluster.objects.select_for_update().only("id").get(pk=cluster_id)
        named = {stored_reference(image) for _, spec, _ in _waiting(cluster_id) for image in spec.images}
        idle = {row.pk for row in rows if row.reference not in named}
        ImageIndex.objects.filter(pk__in=idle).update(wanted=False)
    return idle


def record_readings(cluster_id: int, looked: Sequence[tuple[ImageIndex, ImageReading]]) -> int:
    """Store the results of reading images; return the number of pending pods whose requests changed."""
    if not looked:
        return 0
    with write_transaction():
        cluster = advance(cluster_id)
        now = timezone.now()
        rows = {row.pk: row for row in ImageIndex.objects.filter(pk__in=[row.pk for row, _ in looked])}
        news = {row.reference for row, found in looked if row.pk in rows and _store(rows[row.pk], found, now)}
        changed = _update_pods(cluster, news) if news else []
        if changed:
            change = ClusterTransaction(cluster)
            change.discard_decisions()
            change.end_nominations(changed, Message("new facts about the pod's images were found"))
            change.close()
            dispatch.wake(cluster_id)
    return len(changed)


def _store(row: ImageIndex, found: ImageReading, now: datetime) -> bool:
    """Write a row; return True if its facts changed."""
    before = _facts("", row)
    if found.code:
        row.attempts += 1
        pause = min(FIRST_PAUSE_SECONDS * 2 ** min(row.attempts - 1, 10), LONGEST_PAUSE_SECONDS)
        row.code, row.message = found.code, found.message[:500]
        row.not_before = now + timedelta(seconds=max(pause, min(found.wait_seconds, LONGEST_PAUSE_SECONDS)))
    else:
        row.digest, row.platforms, row.read_at = found.digest, list(found.platforms), now
        row.code = row.message = ""
        row.attempts = 0
        row.not_before = now + timedelta(seconds=settings.HETSCHED_IMAGE_TAG_SECONDS)
        row.wanted = not _is_final(row)
    row.save()
    return _facts("", row) != before


def _update_pods(cluster: Cluster, news: set[str]) -> list[int]:
    """Write new facts into the pending pods that use these images, and return the ids of the pods to schedule again."""
    concerned = [
        (pk, spec, until)
        for pk, spec, until in _waiting(cluster.pk)
        if not news.isdisjoint(map(stored_reference, spec.images))
    ]
    found = add_image_facts(cluster, [spec for _, spec, _ in concerned])
    changed: list[Pod] = []
    others: list[Pod] = []
    for (pk, before, until), (spec, now_until) in zip(concerned, found, strict=True):
        waits = now_until if now_until is None else min(now_until, until)
        row = Pod(pk=pk, spec=spec, images_until=waits, queued=not spec.gates, attempts=0, not_before=None)
        (others if spec == before else changed).append(row)
    write_columns(changed, ("spec", "images_until", "queued", "attempts", "not_before", "flushed"))
    write_columns(others, ("images_until",))
    return [row.pk for row in changed]


def _waiting(cluster_id: int) -> Iterator[tuple[int, PodSpec, datetime]]:
    """Yield the pending pods with image facts that may still change."""
    rows = Pod.objects.filter(cluster_id=cluster_id, state__in=_QUEUED, images_until__isnull=False)
    for pk, spec, until in rows.order_by("id").values_list("pk", "spec", "images_until").iterator(2000):
        if until is not None:
            yield pk, spec, until


def prune_images(cluster_id: int) -> None:
    """Delete images that no pod has used for `KEPT`."""
    ImageIndex.objects.filter(cluster_id=cluster_id, wanted_at__lt=timezone.now() - KEPT).delete()
