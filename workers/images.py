"""Read the image indexes of pending pods' images for live clusters.

Rows define the due lookups. A lookup is claimed first, then made outside any transaction, and its result is recorded.
Pull secrets are read only if they are needed and the cluster's connection allows it, and are not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from celery import shared_task

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.connections.access_review import SECRETS
from hetsched.adapters.oci.pull_secrets import credential_for
from hetsched.adapters.oci.reference import parse_reference
from hetsched.adapters.oci.registry import look_up
from hetsched.adapters.oci.wire import ImageUnreadable
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, as_message, joined
from hetsched.inventory.connections import api_of
from hetsched.inventory.models import Cluster, ClusterKind, Connection, ImageIndex
from hetsched.placement import dispatch
from hetsched.placement.actions.image_platforms import ImageReading, allowed_registries, claim_images, record_readings

AT_ONCE = 8
PER_STEP = 32
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.IMAGES)
def run(cluster_id: int) -> int:
    """Look up the due images of a live cluster; return how many image indexes were read."""
    cluster = Cluster.objects.filter(pk=cluster_id, kind=ClusterKind.KUBERNETES).first()
    if cluster is None or not allowed_registries():
        return 0
    api, done = _secrets_api(cluster), 0
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="images") as threads:
        while some := claim_images(cluster_id, PER_STEP):
            found = list(threads.map(lambda row: _read(api, row), some))
            record_readings(cluster_id, list(zip(some, found, strict=True)))
            for row, looked in zip(some, found, strict=True):
                done += not looked.code
                log.info("image", cluster=cluster.name, image=row.reference, failure=looked.code or None)
    return done


def _secrets_api(cluster: Cluster) -> Api | None:
    """Return the API client that reads pull secrets, or None if reading them is not allowed."""
    if not Connection.objects.filter(cluster=cluster, read_pull_secrets=True).exists():
        return None
    try:
        return api_of(cluster)
    except InputError as error:
        log.warning("pull secrets are not read", cluster=cluster.name, reason=error.code)
        return None


def _read(api: Api | None, row: ImageIndex) -> ImageReading:
    secrets, unread = _secrets(api, row.secrets) if api is not None else ([], Message(""))
    try:
        reference = parse_reference(row.reference)
        found = look_up(reference, allowed_registries(), credential_for(reference, secrets))
    except ImageUnreadable as error:
        partly = unread and error.code == "RegistryRefused"
        message = joined("; ", [as_message(error.message), unread]) if partly else error.message
        return ImageReading(code=error.code, message=message, wait_seconds=error.wait_seconds)
    except Exception as error:  # one malformed image must not block the others
        log.exception("image lookup failed", image=row.reference)
        return ImageReading(code="ImageFailed", message=Message("the lookup failed: {name}", name=type(error).__name__))
    return ImageReading(found.digest, found.platforms)


def _secrets(api: Api, names: Sequence[str]) -> tuple[list[bytes], Message]:
    """Return the readable pull secrets, and a message about the others."""
    found: list[bytes] = []
    unread: list[str] = []
    for full in names:
        namespace, _, name = full.partition("/")
        try:
            found.append(api.get(SECRETS.path(namespace=namespace, name=name)))
        except (ApiFailure, ValueError):
            unread.append(full)
    if not unread:
        return found, Message("")
    return found, Message("pull secret {names} could not be read", names=joined(", ", unread))
