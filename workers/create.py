"""Create the objects of submissions in live clusters, read the results of Jobs, and delete withdrawn objects.

Rows define the desired objects. An attempt is claimed first, then made outside any transaction, and its result is
recorded. After an interrupted attempt, the next attempt checks whether an object of this name exists.
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

AT_ONCE = 16  # threads and rows per claim: with equal numbers, a claim need only outlast one API call
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.CREATE)
def run(cluster_id: int) -> int:
    """Create, read and delete the due objects of a live cluster; return how many reached their desired state."""
    cluster = Cluster.objects.filter(pk=cluster_id, kind=ClusterKind.KUBERNETES, connection__shadow_of="").first()
    if cluster is None:
        return 0
    api, done = api_of(cluster), 0
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="create") as threads:
        while batch := claim_objects(cluster_id, AT_ONCE):
            for submitted, response in zip(batch, threads.map(lambda row: _attempt(api, row), batch), strict=True):
                record_attempt(submitted, _next_state(submitted, response), uid=response.uid, message=response.message)
                done += response.result is SubmissionResult.DONE
                if response.result is not SubmissionResult.DONE:
                    log.info(
                        "object",
                        cluster=cluster.name,
                        object=str(submitted),
                        wanted=submitted.state,
                        reason=response.message,
                    )
    return done


def _attempt(api: Api, submitted: SubmittedObject) -> SubmissionResponse:
    if submitted.state == SubmittedObject.WANTED:
        return create(api, submitted.wanted)
    if submitted.state == SubmittedObject.ENDING:
        return read(api, submitted.wanted, submitted.uid)
    return delete(api, submitted.wanted, submitted.uid)


def _next_state(submitted: SubmittedObject, response: SubmissionResponse) -> str:
    """Return the state after an attempt. A rejected deletion is retried until the permission is granted."""
    if submitted.state == SubmittedObject.ENDING:
        return response.ended or submitted.state
    if response.result is SubmissionResult.DONE:
        return SubmittedObject.MADE if submitted.state == SubmittedObject.WANTED else SubmittedObject.GONE
    refused = response.result is SubmissionResult.REFUSED and submitted.state == SubmittedObject.WANTED
    return SubmittedObject.REFUSED if refused else submitted.state
