"""Create the objects of submissions in live clusters, read the results of Jobs, and delete withdrawn objects.

Rows define the wanted objects. Each attempt is claimed first, made outside any transaction, and recorded. The next
attempt resolves an interrupted one: the object exists under its name, or it does not.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import structlog
from celery import shared_task

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.object_submission import SubmissionResponse, SubmissionResult, create, delete, read
from hetsched.inventory.connections import api_of
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.placement import dispatch
from hetsched.placement.actions.live_submissions import claim_objects, record_attempt
from hetsched.placement.models import SubmittedObject

AT_ONCE = 16  # equal to the number claimed: a claim lasts for one call
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.CREATE)
def run(cluster_id: int) -> int:
    """Create, read and delete the due objects of a live cluster; return how many reached their wanted state."""
    cluster = Cluster.objects.filter(pk=cluster_id, kind=ClusterKind.KUBERNETES, connection__shadow_of="").first()
    if cluster is None:
        return 0
    api, done = api_of(cluster), 0
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="create") as threads:
        while some := claim_objects(cluster_id, AT_ONCE):
            for one, came in zip(some, threads.map(lambda row: _try(api, row), some), strict=True):
                record_attempt(one, _state(one, came), uid=came.uid, message=came.message)
                done += came.result is SubmissionResult.DONE
                if came.result is not SubmissionResult.DONE:
                    log.info("object", cluster=cluster.name, object=str(one), wanted=one.state, reason=came.message)
    return done


def _try(api: Api, one: SubmittedObject) -> SubmissionResponse:
    if one.state == SubmittedObject.WANTED:
        return create(api, one.wanted)
    if one.state == SubmittedObject.ENDING:
        return read(api, one.wanted, one.uid)
    return delete(api, one.wanted, one.uid)


def _state(one: SubmittedObject, came: SubmissionResponse) -> str:
    """Return the state after an attempt. A rejected deletion stays due until the right is granted."""
    if one.state == SubmittedObject.ENDING:
        return came.ended or one.state
    if came.result is SubmissionResult.DONE:
        return SubmittedObject.MADE if one.state == SubmittedObject.WANTED else SubmittedObject.GONE
    refused = came.result is SubmissionResult.REFUSED and one.state == SubmittedObject.WANTED
    return SubmittedObject.REFUSED if refused else one.state
