"""Call the addresses that submissions gave, outside any transaction.

Rule: one attempt per task: five seconds, no redirects, the answer's status alone counts and its body is never read.
"""

from __future__ import annotations

import msgspec
import structlog
from celery import shared_task

from hetsched.adapters.outbound import Refused, call
from hetsched.placement import dispatch
from hetsched.placement.callbacks import allowed, due, message, note

_JSON = {"Content-Type": "application/json"}
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.CALLBACK)
def run(workload_id: str) -> bool:
    """Tell a workload's state if that is due; return whether the other side took it."""
    workload = due().filter(pk=workload_id).defer("manifest").first()
    if workload is None:
        return False
    told = _post(workload.callback_url, message(workload))
    note(workload, told=told)
    return told


def _post(url: str, document: dict[str, object]) -> bool:
    try:
        answer = call(url, allowed(), method="POST", headers=_JSON, body=msgspec.json.encode(document), most=0)
    except Refused as refused:
        log.info("callback failed", code=refused.code, reason=refused.message)
        return False
    return 200 <= answer.status < 300
