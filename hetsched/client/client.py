"""Python client of a server's REST API: one method for each operation.

Methods accept plain values and return the types of `documents`. REST resources without a method are available through
`get`, `items` and `send`. A submission has an idempotency key, which is generated if omitted, so that a retry after a
lost response does not submit anything twice.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from hetsched.contracts.api.decision import WhatIfAnswer
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import from_parts

from . import waiting
from .documents import (
    Accepted,
    BatchAnswer,
    ClusterRow,
    Decision,
    DecisionRow,
    DeliveryRow,
    Hold,
    HoldRow,
    NodeRow,
    PodRow,
    PodWhy,
    QueuedPod,
    Workload,
    WorkloadRow,
    read,
)
from .errors import Refused
from .transport import KEY, Transport
from .waiting import Goal, Waited

DEFAULT_SERVER = "http://127.0.0.1:8000"
JSON = {"Content-Type": "application/json"}
Manifest = str | Mapping[str, Any]


class Client(Transport):
    """Client of one server with one token. Use it in a `with` statement, from one thread at a time."""

    @classmethod
    def from_environment(cls) -> Client:
        """Return a client for the server in HETSCHED_SERVER with the token in HETSCHED_TOKEN."""
        return cls(os.environ.get("HETSCHED_SERVER") or DEFAULT_SERVER, os.environ.get("HETSCHED_TOKEN", ""))

    # -- workloads -----------------------------------------------------------------------------------------------------

    def submit(
        self,
        manifest: Manifest,
        *,
        cluster: str = "",
        policy: str = "",
        priority: int | None = None,
        callback_url: str = "",
        name: str = "",
        plan: str = "",
        hold: str = "",
        key: str = "",
        strict: bool = False,
    ) -> Accepted:
        """Submit pods as YAML or JSON text, or as one object (a `List` for several).

        Repeated calls with the same key and body submit only once. `plan` is the token of a what-if, which must still
        be valid; otherwise, `stale_plan` parses the error. `hold` is the ID of a hold that reserves capacity for these
        pods. `strict` rejects unknown fields, annotations and kinds.
        """
        body = _filled(
            manifest=manifest, cluster=cluster, policy=policy, priority=priority, callbackUrl=callback_url, name=name,
            plan=plan, hold=hold, **({"strict": True} if strict else {}),
        )  # fmt: skip
        response = self.post("workloads/", body, key=key or str(uuid.uuid4()))
        replayed = response.headers.get("Idempotency-Replayed") == "true"
        return msgspec.structs.replace(read(response.json(), Accepted), replayed=replayed)

    def submit_many(
        self, items: Iterable[Mapping[str, Any]], *, all_or_nothing: bool = False, key: str = "", **common: Any
    ) -> BatchAnswer:
        """Submit many manifests in one request, either independently or all or nothing.

        An item has the fields of a submission under their REST names, in particular the manifest, and may have a `key`.
        `common` contains default values for these fields.
        """
        body = {"items": [dict(item) for item in items], "allOrNothing": all_or_nothing, **_filled(**common)}
        return read(self.post("submissions/", body, key=key or str(uuid.uuid4())).json(), BatchAnswer)

    def workload(self, workload_id: str, *, wait_seconds: int = 0, goal: Goal = Goal.PLACED) -> Workload:
        """Return a workload; the server delays the response until `goal` is reached, by up to `wait_seconds`."""
        held = {"wait": wait_seconds, "for": goal.value} if wait_seconds else {}
        return self.read_workload(self.get(self.workload_path(workload_id), **held))

    def workloads(self, *, most: int = 100, **query: str) -> Iterator[WorkloadRow]:
        """Yield workloads, latest first; `query` may filter by cluster, namespace, state or name."""
        return (read(row, WorkloadRow) for row in self.items("workloads/", most=most, **query))

    def pods(self, workload_id: str, *, most: int = 10_000, **query: str) -> Iterator[PodRow]:
        """Yield the pods of a workload in the order of submission; `query` may filter by state."""
        rows = self.items(f"{self.workload_path(workload_id)}pods/", most=most, **query)
        return (msgspec.convert(row, PodRow) for row in rows)

    def wait(
        self, workload_id: str, goal: Goal = Goal.PLACED, *, timeout_seconds: float = 300.0, patient: bool = False
    ) -> Waited:
        """Wait until a workload reaches `goal` or fails to, for at most `timeout_seconds`.

        With `patient`, the verdict *not now* does not end the wait.
        """
        return waiting.wait(self, workload_id, Goal(goal), timeout_seconds, patient=patient)

    def watch(
        self, workload_id: str, *, every_seconds: float = 1.0, timeout_seconds: float = math.inf
    ) -> Iterator[Workload]:
        """Yield the workload, and yield it again after each change until the timeout."""
        return waiting.watch(self, workload_id, every_seconds=every_seconds, timeout_seconds=timeout_seconds)

    def cancel(self, workload_id: str, reason: str) -> Workload:
        """Cancel a workload: release its resources and delete its objects in a live cluster."""
        path = self.workload_path(workload_id)
        return self.read_workload(self.send("DELETE", path, query={"reason": reason}, repeat=True).json())

    def act(self, workload_id: str, action: str, reason: str, **more: Any) -> Workload:
        """Perform the action `retry` or `priority` on the current version of a workload."""
        path = self.workload_path(workload_id)
        tag, _ = self.changed(path)
        body = encode(_filled(action=action, reason=reason, **more))
        answer = self.send("POST", f"{path}actions/", body=body, headers={**JSON, "If-Match": tag})
        return self.read_workload(answer.json())

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decision(self, decision_id: int | str, *, further: bool = False, all_nodes: bool = False) -> Decision:
        """Return a decision; `further` adds nearest fits, and `all_nodes` adds all nodes with all scores."""
        query = {**({"nearestFit": "true"} if further else {}), **({"explain": "true"} if all_nodes else {})}
        return read(self.get(f"decisions/{quote(str(decision_id), safe='')}/", **query), Decision)

    def decisions(self, *, most: int = 100, **query: str) -> Iterator[DecisionRow]:
        """Yield decisions, latest first; `query` may filter by cluster, workload, namespace, pod, verdict or node."""
        return (read(row, DecisionRow) for row in self.items("decisions/", most=most, **query))

    def why(self, pod_id: int, *, outlook: bool = False) -> PodWhy:
        """Return the reasons for a pod's state over time; `outlook` adds changes that would place the pod now."""
        query = {"outlook": "true"} if outlook else {}
        return read(self.get(f"pods/{pod_id}/why/", **query), PodWhy)

    def what_if(self, manifest: Manifest, *, cluster: str | Mapping[str, Any] = "", **more: Any) -> WhatIfAnswer:
        """Return the result of scheduling these pods, without writing anything.

        `more` contains other fields of the request by their REST names, for example policy, drain, addNodes and
        explain.
        """
        answer = self.post("what-if/", _filled(manifest=manifest, cluster=cluster, **more), repeat=True)
        return _what_if(answer.json())

    def plan(self, manifest: Manifest, *, cluster: str = "", policy: str = "", **more: Any) -> WhatIfAnswer:
        """Return a what-if with a token (`plan.token`) to submit this placement, if all pods are placed."""
        return self.what_if(manifest, cluster=cluster, policy=policy, plan=True, **more)

    @staticmethod
    def stale_plan(refused: Refused) -> WhatIfAnswer | None:
        """Return the new what-if in the error about a stale plan, or None if the error has another cause."""
        found = refused.problem.get("whatIf")
        return _what_if(found) if isinstance(found, Mapping) else None

    # -- holds ---------------------------------------------------------------------------------------------------------

    def hold(
        self, manifest: Manifest, *, seconds: int, cluster: str = "", policy: str = "", note: str = "", key: str = ""
    ) -> Hold:
        """Reserve capacity for all pods of a manifest or for none; a submission can then use the hold."""
        body = _filled(manifest=manifest, cluster=cluster, policy=policy, seconds=seconds, note=note)
        created = self.post("holds/", body, key=key or str(uuid.uuid4())).json()
        return self.held(created["id"])

    def held(self, hold_id: str) -> Hold:
        """Return a hold with its reserved capacity by node."""
        return read(self.get(_hold_path(hold_id)), Hold)

    def holds(self, *, most: int = 100, **query: str) -> Iterator[HoldRow]:
        """Yield holds, latest first; `query` may filter by cluster, namespace, state or workload."""
        return (read(row, HoldRow) for row in self.items("holds/", most=most, **query))

    def extend_hold(self, hold_id: str, seconds: int, reason: str) -> Hold:
        """Set the expiry of a hold to `seconds` from now."""
        tag, _ = self.changed(_hold_path(hold_id))
        body = encode({"action": "extend", "seconds": seconds, "reason": reason})
        answer = self.send("POST", f"{_hold_path(hold_id)}actions/", body=body, headers={**JSON, "If-Match": tag})
        return read(answer.json(), Hold)

    def cancel_hold(self, hold_id: str, reason: str) -> Hold:
        """Cancel a hold; a hold that has ended stays unchanged."""
        return read(self.send("DELETE", _hold_path(hold_id), query={"reason": reason}, repeat=True).json(), Hold)

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def deliveries(self, *, most: int = 100, **query: str) -> Iterator[DeliveryRow]:
        """Yield deliveries, latest first; `query` may filter by webhook, workload, state or event."""
        return (read(row, DeliveryRow) for row in self.items("deliveries/", most=most, **query))

    def redeliver(self, delivery_id: str, reason: str) -> DeliveryRow:
        """Send a delivery again, with the same ID and body."""
        path = f"deliveries/{quote(delivery_id, safe='')}/redeliver/"
        return read(self.post(path, {"reason": reason}).json(), DeliveryRow)

    # -- the fleet -----------------------------------------------------------------------------------------------------

    def clusters(self, *, most: int = 100) -> Iterator[ClusterRow]:
        """Yield clusters."""
        return (read(row, ClusterRow) for row in self.items("clusters/", most=most))

    def nodes(self, *, most: int = 10_000, **query: str) -> Iterator[NodeRow]:
        """Yield nodes in order of their names; `query` may filter by cluster, family or pool."""
        return (read(row, NodeRow) for row in self.items("nodes/", most=most, **query))

    def queue(self, *, most: int = 100, **query: str) -> Iterator[QueuedPod]:
        """Yield pending pods: first those that can be tried now, in scheduling order, then all other pending pods."""
        return (read(row, QueuedPod) for row in self.items("queue/", most=most, **query))

    # -- raw documents -------------------------------------------------------------------------------------------------

    def post(self, path: str, body: Mapping[str, Any], *, key: str = "", repeat: bool = False) -> Any:
        """Send a JSON document; the client may retry it if it has an idempotency key or `repeat` is set."""
        headers = {**JSON, **({KEY: key} if key else {})}
        return self.send("POST", path, body=encode(body), headers=headers, repeat=repeat or bool(key))

    @staticmethod
    def workload_path(workload_id: str) -> str:
        """Return the path of a workload relative to the API root."""
        return f"workloads/{quote(workload_id, safe='')}/"

    @staticmethod
    def read_workload(document: Mapping[str, Any]) -> Workload:
        """Convert the document of a workload to a `Workload`."""
        return read(document, Workload)


def _hold_path(hold_id: str) -> str:
    return f"holds/{quote(hold_id, safe='')}/"


def _what_if(document: Mapping[str, Any]) -> WhatIfAnswer:
    try:
        return msgspec.convert({"nodes": None, **document}, WhatIfAnswer, dec_hook=from_parts)
    except msgspec.ValidationError as error:
        raise InputError("AnswerUnreadable", f"the server's response does not match the API: {error}") from None


def _filled(**fields: Any) -> dict[str, Any]:
    """Return the fields that are neither empty strings nor None."""
    return {name: value for name, value in fields.items() if value not in ("", None)}
