"""Call the addresses that submissions gave, outside any transaction.

Rule: one attempt per task: five seconds, no redirects, the answer's status alone counts and its body is never read.
"""

from __future__ import annotations

import httpx
import structlog
from celery import shared_task

from hetsched.placement import dispatch
from hetsched.placement.callbacks import due, is_allowed, message, note

TIMEOUT_SECONDS = 5.0
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.CALLBACK)
def run(workload_id: str) -> bool:
    """Tell a workload's state if that is due; return whether the other side took it."""
    workload = due().filter(pk=workload_id).defer("manifest").first()
    if workload is None:
        return False
    told = is_allowed(workload.callback_url) and _post(workload.callback_url, message(workload))
    note(workload, told=told)
    return told


def _post(url: str, document: dict[str, object]) -> bool:
    try:
        with (
            httpx.Client(timeout=TIMEOUT_SECONDS, follow_redirects=False, trust_env=False) as client,
            client.stream("POST", url, json=document) as answer,
        ):
            return answer.is_success
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        log.info("callback failed", host=httpx.URL(url).host, error=type(error).__name__)
        return False
