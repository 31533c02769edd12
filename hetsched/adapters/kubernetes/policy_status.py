"""Write the review result of a policy into the status of its object.

The status has one condition, `Accepted`: True with the version number in this installation, or False with a code and
the invalid field. `observedGeneration` is the generation that was reviewed. The patch contains the object's uid, so a
recreated object of the same name never gets the old object's status.
Source: Kubernetes API conventions, "Typical status properties".
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from hetsched.contracts.errors import Problem

from .api import Api, ApiFailure
from .resources import SCHEDULING_POLICIES

_LONGEST = 1024  # characters of a message
_FOR_NOTHING = (400, 403, 404, 409, 422)


class PolicyStatus(msgspec.Struct, frozen=True):
    """Status to write to one SchedulingPolicy; `version` is the version in effect, 0 if none was accepted yet."""

    name: str
    uid: str
    generation: int
    version: int
    since: str
    problem: Problem | None = None


def write_status(api: Api, one: PolicyStatus) -> bool:
    """Write the status of one SchedulingPolicy; return False if the call should be retried."""
    condition = {
        "type": "Accepted",
        "status": "True" if one.problem is None else "False",
        "reason": "Accepted" if one.problem is None else one.problem.code,
        "message": _message(one),
        "observedGeneration": one.generation,
        "lastTransitionTime": one.since,
    }
    status = {"observedGeneration": one.generation, "version": one.version or None, "conditions": [condition]}
    body: dict[str, Any] = {"metadata": {"uid": one.uid}, "status": status}
    path = SCHEDULING_POLICIES.path(name=one.name, part="status")
    try:
        api.send("PATCH", path, json.dumps(body).encode(), content="application/merge-patch+json")
    except ApiFailure as failure:
        return failure.status in _FOR_NOTHING
    return True


def _message(status: PolicyStatus) -> str:
    if status.problem is None:
        return f"version {status.version} is active"
    text = f"{status.problem.field}: {status.problem.message}" if status.problem.field else status.problem.message
    goes_on = f"; version {status.version} remains active" if status.version else ""
    return f"{text[: _LONGEST - len(goes_on)]}{goes_on}"
