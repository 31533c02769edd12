"""A server's REST as Python: one method for each thing that a program asks of it.

Rule: methods take plain values and return the types of `documents`; what REST has and this class does not name is
reached by `get`, `items` and `send`. A submission carries an idempotency key, its own if none is given, so that a
repetition after a lost answer submits nothing twice.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from hetsched.contracts.decision import WhatIfAnswer
from hetsched.contracts.errors import InputError

from . import waiting
from .documents import (
    Accepted,
    ClusterRow,
    Decision,
    DecisionRow,
    NodeRow,
    PodRow,
    PodWhy,
    QueuedPod,
    Workload,
    WorkloadRow,
    read,
)
from .transport import Transport
from .waiting import Goal, Waited

DEFAULT_SERVER = "http://127.0.0.1:8000"
JSON = {"Content-Type": "application/json"}
Manifest = str | Mapping[str, Any]


class Client(Transport):
    """One server and one token. Use it in a `with` statement, from one thread at a time."""

    @classmethod
    def from_environment(cls) -> Client:
        """Return a client of HETSCHED_SERVER with HETSCHED_TOKEN."""
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
        key: str = "",
        **more: Any,
    ) -> Accepted:
        """Submit pods: YAML or JSON text, or one object (a `List` for several). The same key and body submit once.

        `more` are further fields of the request by their names in REST.
        """
        body = _filled(
            manifest=manifest, cluster=cluster, policy=policy, priority=priority, callbackUrl=callback_url, name=name,
            **more,
        )  # fmt: skip
        response = self.post("workloads/", body, key=key or str(uuid.uuid4()))
        replayed = response.headers.get("Idempotency-Replayed") == "true"
        return msgspec.structs.replace(read(response.json(), Accepted), replayed=replayed)

    def workload(self, workload_id: str, *, wait_seconds: int = 0, goal: Goal = Goal.PLACED) -> Workload:
        """Return a workload; the answer is held for `wait_seconds` at most, until it is as far as `goal`."""
        held = {"wait": wait_seconds, "for": goal.value} if wait_seconds else {}
        return self.read_workload(self.get(self.workload_path(workload_id), **held))

    def workloads(self, *, most: int = 100, **query: str) -> Iterator[WorkloadRow]:
        """Yield workloads, the latest first; `query` may name a cluster, namespace, state or name."""
        return (read(row, WorkloadRow) for row in self.items("workloads/", most=most, **query))

    def pods(self, workload_id: str, *, most: int = 10_000, **query: str) -> Iterator[PodRow]:
        """Yield the pods of a workload in the order of submission; `query` may name a state."""
        rows = self.items(f"{self.workload_path(workload_id)}pods/", most=most, **query)
        return (msgspec.convert(row, PodRow) for row in rows)

    def wait(
        self, workload_id: str, goal: Goal = Goal.PLACED, *, timeout_seconds: float = 300.0, patient: bool = False
    ) -> Waited:
        """Return the workload once it reached `goal`, cannot any more, or time is over; `patient` waits for room."""
        return waiting.wait(self, workload_id, Goal(goal), timeout_seconds, patient=patient)

    def watch(
        self, workload_id: str, *, every_seconds: float = 1.0, timeout_seconds: float = math.inf
    ) -> Iterator[Workload]:
        """Yield the workload as it is, then again each time that something of it changed, until time is over."""
        return waiting.watch(self, workload_id, every_seconds=every_seconds, timeout_seconds=timeout_seconds)

    def cancel(self, workload_id: str, reason: str) -> Workload:
        """Cancel a workload: what it holds is freed, what it brought to a live cluster is deleted."""
        path = self.workload_path(workload_id)
        return self.read_workload(self.send("DELETE", path, query={"reason": reason}, repeat=True).json())

    def act(self, workload_id: str, action: str, reason: str, **more: Any) -> Workload:
        """Do `retry` or `priority` to a workload as it is now."""
        path = self.workload_path(workload_id)
        tag, _ = self.changed(path)
        body = msgspec.json.encode(_filled(action=action, reason=reason, **more))
        answer = self.send("POST", f"{path}actions/", body=body, headers={**JSON, "If-Match": tag})
        return self.read_workload(answer.json())

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decision(self, decision_id: int | str, *, further: bool = False, all_nodes: bool = False) -> Decision:
        """Return a decision; `further` works out what would have helped, `all_nodes` every node with every score."""
        query = {**({"nearestFit": "true"} if further else {}), **({"explain": "true"} if all_nodes else {})}
        return read(self.get(f"decisions/{quote(str(decision_id), safe='')}/", **query), Decision)

    def decisions(self, *, most: int = 100, **query: str) -> Iterator[DecisionRow]:
        """Yield decisions, the latest first; `query` may name a cluster, workload, namespace, pod, verdict or node."""
        return (read(row, DecisionRow) for row in self.items("decisions/", most=most, **query))

    def why(self, pod_id: int, *, outlook: bool = False) -> PodWhy:
        """Say why a pod is where it is, over time; `outlook` works out what would place a waiting pod now."""
        query = {"outlook": "true"} if outlook else {}
        return read(self.get(f"pods/{pod_id}/why/", **query), PodWhy)

    def what_if(self, manifest: Manifest, *, cluster: str | Mapping[str, Any] = "", **more: Any) -> WhatIfAnswer:
        """Say what would happen to these pods; nothing is written.

        `more` are further fields of the request by their names in REST: policy, drain, addNodes, explain …
        """
        answer = self.post("what-if/", _filled(manifest=manifest, cluster=cluster, **more), repeat=True)
        try:
            return msgspec.convert({"nodes": None, **answer.json()}, WhatIfAnswer)
        except msgspec.ValidationError as error:
            raise InputError("AnswerUnreadable", f"the server's answer is not as agreed: {error}") from None

    # -- the fleet -----------------------------------------------------------------------------------------------------

    def clusters(self, *, most: int = 100) -> Iterator[ClusterRow]:
        """Yield clusters."""
        return (read(row, ClusterRow) for row in self.items("clusters/", most=most))

    def nodes(self, *, most: int = 10_000, **query: str) -> Iterator[NodeRow]:
        """Yield nodes by name; `query` may name a cluster, family or pool."""
        return (read(row, NodeRow) for row in self.items("nodes/", most=most, **query))

    def queue(self, *, most: int = 100, **query: str) -> Iterator[QueuedPod]:
        """Yield the pods that wait, those that are due in the order in which they will be tried."""
        return (read(row, QueuedPod) for row in self.items("queue/", most=most, **query))

    # -- for whoever needs the documents themselves --------------------------------------------------------------------

    def post(self, path: str, body: Mapping[str, Any], *, key: str = "", repeat: bool = False) -> Any:
        """Send a JSON document; with an idempotency key it may be repeated."""
        headers = {**JSON, **({"Idempotency-Key": key} if key else {})}
        return self.send("POST", path, body=msgspec.json.encode(body), headers=headers, repeat=repeat or bool(key))

    @staticmethod
    def workload_path(workload_id: str) -> str:
        """Return the address of a workload under the API's root."""
        return f"workloads/{quote(workload_id, safe='')}/"

    @staticmethod
    def read_workload(document: Mapping[str, Any]) -> Workload:
        """Return the document of a workload as its type."""
        return read(document, Workload)


def _filled(**fields: Any) -> dict[str, Any]:
    """Return the fields that say something."""
    return {name: value for name, value in fields.items() if value not in ("", None)}
