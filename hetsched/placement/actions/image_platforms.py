"""The platforms of images become part of what waiting pods ask for.

Problem: a pod must not wait for a registry longer than a moment, and must not land where its image does not run.
Rule: only on live clusters, and only registries that the deployment names. A pod that comes takes what is known of its
images; where something is not known yet it waits, `HETSCHED_IMAGE_WAIT_SECONDS` at most, then counts as it is: unknown.
A worker reads what is due, outside any transaction; what it found goes into the pods that wait, which are then decided
anew, and whatever was being decided on the facts of before is void. What failed is tried again after 30 s, 1, 2, …
minutes, at most an hour.
Invariant: nothing is read for a pod that does not wait any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from hetsched.adapters.oci.facts import with_facts
from hetsched.adapters.oci.reference import Reference, parse_reference
from hetsched.adapters.oci.wire import Allowed
from hetsched.contracts.errors import InputError
from hetsched.contracts.workload import ImageFacts, PodSpec
from hetsched.inventory.ledger import advance, write_columns
from hetsched.inventory.models import Cluster, ClusterKind, ImageIndex
from hetsched.placement import dispatch
from hetsched.placement.lifecycle import QUEUED
from hetsched.placement.models import Pod
from hetsched.placement.queries.images import kept_under
from hetsched.storage.batches import parts

from .change import Change

CLAIM = timedelta(seconds=120)  # longer than reading an image takes, whatever its registry does
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 30, 3600
MOST_SECRETS = 20
KEPT = timedelta(days=30)
_NOT_YET = "its index was not read yet"
_QUEUED = sorted(state.value for state in QUEUED)


class Looked(msgspec.Struct, frozen=True):
    """What came of reading one image: a digest and platforms, or a code and the reason."""

    digest: str = ""
    platforms: tuple[str, ...] = ()
    code: str = ""
    message: str = ""
    wait_seconds: float = 0.0


def allowed() -> Allowed:
    """Return which registries this deployment reads."""
    return Allowed(frozenset(settings.HETSCHED_REGISTRIES), frozenset(settings.HETSCHED_PLAIN_REGISTRIES))


def with_known(cluster: Cluster, pods: Sequence[PodSpec]) -> list[PodSpec]:
    """Return pods with what is known of their images by now; nothing is written and nobody is asked."""
    registries = allowed()
    if cluster.kind != ClusterKind.KUBERNETES or not registries:
        return list(pods)
    return [pod for pod, _ in _Images(cluster, registries, pods, asks=False).put()]


def look_up(cluster: Cluster, pods: Sequence[PodSpec]) -> list[tuple[PodSpec, datetime | None]]:
    """Return pods with what is known of their images, and until when each waits for what is not.

    A time that is over: it waits no longer, but what it goes by may change. None: nothing can come.
    """
    registries = allowed()
    if cluster.kind != ClusterKind.KUBERNETES or not registries:
        return [(pod, None) for pod in pods]
    return _Images(cluster, registries, pods).put()


class _Images:
    """The images of some pods, as far as they are known; `asks`: the others are to be read."""

    def __init__(self, cluster: Cluster, registries: Allowed, pods: Sequence[PodSpec], *, asks: bool = True) -> None:
        self.cluster = cluster
        self.pods = pods
        self.now = timezone.now()
        self.references: dict[str, Reference] = {}
        self.facts: dict[str, ImageFacts] = {}
        for image in dict.fromkeys(image for pod in pods for image in pod.images):
            self._name(image, registries)
        self.names = sorted({str(reference) for reference in self.references.values()})
        self.rows: dict[str, ImageIndex] = {}
        for some in parts(self.names):
            known = ImageIndex.objects.filter(cluster=cluster, reference__in=some)
            self.rows |= {row.reference: row for row in known}
        if asks:
            self._ask()

    def _name(self, image: str, registries: Allowed) -> None:
        try:
            reference = parse_reference(image)
        except InputError as error:
            self.facts[image] = ImageFacts(image, unknown=error.message)
            return
        if registries.reads(reference.host):
            self.references[image] = reference
        else:
            self.facts[image] = ImageFacts(image, unknown=f"this server does not read {reference.host}")

    def _ask(self) -> None:
        """Make rows of images that are not known; those that are due again are wanted."""
        secrets = self._secrets()
        new = [
            ImageIndex(
                cluster=self.cluster, reference=name, wanted_at=self.now, not_before=self.now, secrets=secrets[name]
            )
            for name in self.names
            if name not in self.rows
        ]
        ImageIndex.objects.bulk_create(new, batch_size=500, ignore_conflicts=True)
        asked = [row for row in self.rows.values() if self._is_news(row, secrets[row.reference])]
        for row in asked:
            row.wanted, row.wanted_at = True, self.now
            row.secrets = list(dict.fromkeys([*secrets[row.reference], *row.secrets]))[:MOST_SECRETS]
        ImageIndex.objects.bulk_update(asked, ("wanted", "wanted_at", "secrets"), batch_size=500)
        if new or any(row.wanted and row.not_before <= self.now for row in self.rows.values()):
            dispatch.wake(self.cluster.pk, dispatch.IMAGES)

    def _is_news(self, row: ImageIndex, secrets: list[str]) -> bool:
        """Tell whether a row has to be written because pods name it: not for every one of thousands."""
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
        return ImageFacts(image, tuple(row.platforms))
    return ImageFacts(image, unknown=(row.message if row else "") or _NOT_YET)


def _is_final(row: ImageIndex | None) -> bool:
    """Tell whether nothing can change: what a digest names was read."""
    return row is not None and row.read_at is not None and "@" in row.reference


def _is_settled(row: ImageIndex | None, now: datetime) -> bool:
    """Tell whether nobody has to wait for it: it was read or tried, and its time has not come again."""
    if row is None:
        return False
    return _is_final(row) or (row.not_before > now and (row.read_at is not None or bool(row.code)))


# -- reading -----------------------------------------------------------------------------------------------------------


def due_images(cluster_id: int) -> QuerySet[ImageIndex]:
    """Return the images that are to be read by now; none where this deployment reads no registry."""
    if not allowed():
        return ImageIndex.objects.none()
    return ImageIndex.objects.filter(cluster_id=cluster_id, wanted=True, not_before__lte=timezone.now())


def claim(cluster_id: int, limit: int) -> list[ImageIndex]:
    """Return some images that are due, for the caller alone; those that nobody waits for are left."""
    rows = list(due_images(cluster_id).order_by("not_before", "id")[:limit])
    again = [row for row in rows if row.read_at is not None or row.attempts]
    if again:
        idle = _let_go(cluster_id, again)
        rows = [row for row in rows if row.pk not in idle]
    until = timezone.now() + CLAIM
    mine = ImageIndex.objects.filter(wanted=True)
    return [row for row in rows if mine.filter(pk=row.pk, not_before=row.not_before).update(not_before=until)]


def _let_go(cluster_id: int, rows: Sequence[ImageIndex]) -> set[int]:
    """Read those no more that no waiting pod names; a pod that comes meanwhile waits, and then names one anew."""
    with transaction.atomic():
        Cluster.objects.select_for_update().only("id").get(pk=cluster_id)
        named = {kept_under(image) for _, spec, _ in _waiting(cluster_id) for image in spec.images}
        idle = {row.pk for row in rows if row.reference not in named}
        ImageIndex.objects.filter(pk__in=idle).update(wanted=False)
    return idle


def note_looked(cluster_id: int, looked: Sequence[tuple[ImageIndex, Looked]]) -> int:
    """Keep what came of reading images; return how many waiting pods ask for something else by that."""
    if not looked:
        return 0
    with transaction.atomic():
        cluster = advance(cluster_id)
        now = timezone.now()
        rows = {row.pk: row for row in ImageIndex.objects.filter(pk__in=[row.pk for row, _ in looked])}
        news = {row.reference for row, found in looked if row.pk in rows and _keep(rows[row.pk], found, now)}
        changed = _tell_pods(cluster, news) if news else []
        if changed:
            change = Change(cluster)
            change.decide_anew()
            change.end_nominations(changed, "more is known of its images by now")
            change.close()
            dispatch.wake(cluster_id)
    return len(changed)


def _keep(row: ImageIndex, found: Looked, now: datetime) -> bool:
    """Write a row; return whether it says something else than before."""
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


def _tell_pods(cluster: Cluster, news: set[str]) -> list[int]:
    """Put what is new into the pods that wait and name it, and have them decided."""
    concerned = [
        (pk, spec, until)
        for pk, spec, until in _waiting(cluster.pk)
        if not news.isdisjoint(map(kept_under, spec.images))
    ]
    found = look_up(cluster, [spec for _, spec, _ in concerned])
    told: list[Pod] = []
    others: list[Pod] = []
    for (pk, before, until), (spec, now_until) in zip(concerned, found, strict=True):
        waits = now_until if now_until is None else min(now_until, until)
        row = Pod(pk=pk, spec=spec, images_until=waits, queued=not spec.gates, attempts=0, not_before=None)
        (others if spec == before else told).append(row)
    write_columns(told, ("spec", "images_until", "queued", "attempts", "not_before", "flushed"))
    write_columns(others, ("images_until",))
    return [row.pk for row in told]


def _waiting(cluster_id: int) -> Iterator[tuple[int, PodSpec, datetime]]:
    """Yield the pods that wait and may be helped by another look at their images."""
    rows = Pod.objects.filter(cluster_id=cluster_id, state__in=_QUEUED, images_until__isnull=False)
    for pk, spec, until in rows.order_by("id").values_list("pk", "spec", "images_until").iterator(2000):
        if until is not None:
            yield pk, spec, until


def forget_images(cluster_id: int) -> None:
    """Delete what no pod asked for in a long time."""
    ImageIndex.objects.filter(cluster_id=cluster_id, wanted_at__lt=timezone.now() - KEPT).delete()
