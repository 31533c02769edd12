"""API server that serves one disruption budget and the pods that it selects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hetsched.adapters.kubernetes.api import ApiFailure, Resource
from hetsched.adapters.kubernetes.resources import BUDGETS


class BudgetServer:
    """Serve the budget `default/guard` and the pods that it selects; `ready` maps pod names to UIDs."""

    def __init__(
        self, *, allowed: int, ready: Mapping[str, str], failure: ApiFailure | None = None, **changes: Any
    ) -> None:
        self.allowed, self.ready, self.failure, self.changes = allowed, ready, failure, changes

    def list_all(self, resource: Resource) -> tuple[list[bytes], str]:
        assert resource == BUDGETS
        if self.failure is not None:
            raise self.failure
        selector = {"matchLabels": {"app": "web"}}
        spec, status = {"selector": selector}, {"disruptionsAllowed": self.allowed}
        odd = {"metadata": {"name": "odd", "namespace": "default"}, "spec": {"selector": 5}}
        guard = {"metadata": {"name": "guard", "namespace": "default"}, "spec": spec, "status": status}
        return [json.dumps(item).encode() for item in (odd, guard)], "1"

    def get(self, path: str) -> bytes:
        name = path.rpartition("/")[2]
        if name not in self.ready:
            raise ApiFailure(404, "NotFound", "no such pod")
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        metadata = {"name": name, "uid": self.ready[name], "labels": {"app": "web"}}
        pod = {"metadata": metadata, "status": status}
        return json.dumps({key: part | self.changes.get(key, {}) for key, part in pod.items()}).encode()
