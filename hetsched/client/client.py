"""A server's REST as Python: one method for each thing that a program asks of it.

Rule: methods take plain values and return the types of `documents`; what REST has and this class does not name is
reached by `get`, `items` and `send`. A submission carries an idempotency key, its own if none is given, so that a
repetition after a lost answer submits nothing twice.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from hetsched.contracts.decision import WhatIfAnswer
from hetsched.contracts.errors import InputError

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
        plan: str = "",
        hold: str = "",
        key: str = "",
    ) -> Accepted:
        """Submit pods: YAML or JSON text, or one object (a `List` for several). The same key and body submit once.

        `plan` is the token of a what-if that has to come true (`stale_plan` reads the refusal if it does not), `hold`
        names room that was held for these pods.
        """
        body = _filled(
            manifest=manifest, cluster=cluster, policy=policy, priority=priority, callbackUrl=callback_url, name=name,
            plan=plan, hold=hold,
        )  # fmt: skip
        response = self.post("workloads/", body, key=key or str(uuid.uuid4()))
        replayed = response.headers.get("Idempotency-Replayed") == "true"
        return msgspec.structs.replace(read(response.json(), Accepted), replayed=replayed)

    def submit_many(
        self, items: Iterable[Mapping[str, Any]], *, all_or_nothing: bool = False, key: str = "", **common: Any
    ) -> BatchAnswer:
        """Submit many manifests in one request, each on its own, or all of them or nothing.

        An item has the fields of a submission by their names in REST, its manifest above all, and may have a `key`;
        `common` are fields of items without their own.
        """
        body = {"items": [dict(item) for item in items], "allOrNothing": all_or_nothing, **_filled(**common)}
        return read(self.post("submissions/", body, key=key or str(uuid.uuid4())).json(), BatchAnswer)

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
        return _what_if(answer.json())

    def plan(self, manifest: Manifest, *, cluster: str = "", policy: str = "", **more: Any) -> WhatIfAnswer:
        """Say what would happen, with a token by which it can be submitted as it is (`plan.token`) if it is placed."""
        return self.what_if(manifest, cluster=cluster, policy=policy, plan=True, **more)

    @staticmethod
    def stale_plan(refused: Refused) -> WhatIfAnswer | None:
        """Return the fresh answer that came with the refusal of a plan, None if it was refused for something else."""
        found = refused.problem.get("whatIf")
        return _what_if(found) if isinstance(found, Mapping) else None

    # -- room ----------------------------------------------------------------------------------------------------------

    def hold(
        self, manifest: Manifest, *, seconds: int, cluster: str = "", policy: str = "", note: str = "", key: str = ""
    ) -> Hold:
        """Hold room for the pods of a manifest, for all of them or for none; a submission names it to have its room."""
        body = _filled(manifest=manifest, cluster=cluster, policy=policy, seconds=seconds, note=note)
        made = self.post("holds/", body, key=key or str(uuid.uuid4())).json()
        return self.held(made["id"])

    def held(self, hold_id: str) -> Hold:
        """Return a hold with what it keeps of which nodes."""
        return read(self.get(_hold_path(hold_id)), Hold)

    def holds(self, *, most: int = 100, **query: str) -> Iterator[HoldRow]:
        """Yield holds, the latest first; `query` may name a cluster, namespace, state or workload."""
        return (read(row, HoldRow) for row in self.items("holds/", most=most, **query))

    def extend_hold(self, hold_id: str, seconds: int, reason: str) -> Hold:
        """Have a hold last so many seconds more from now."""
        tag, _ = self.changed(_hold_path(hold_id))
        body = msgspec.json.encode({"action": "extend", "seconds": seconds, "reason": reason})
        answer = self.send("POST", f"{_hold_path(hold_id)}actions/", body=body, headers={**JSON, "If-Match": tag})
        return read(answer.json(), Hold)

    def cancel_hold(self, hold_id: str, reason: str) -> Hold:
        """Let a hold go; one that is over stays as it is."""
        return read(self.send("DELETE", _hold_path(hold_id), query={"reason": reason}, repeat=True).json(), Hold)

    # -- what was told -------------------------------------------------------------------------------------------------

    def deliveries(self, *, most: int = 100, **query: str) -> Iterator[DeliveryRow]:
        """Yield deliveries, the latest first; `query` may name a webhook, workload, state or event."""
        return (read(row, DeliveryRow) for row in self.items("deliveries/", most=most, **query))

    def redeliver(self, delivery_id: str, reason: str) -> DeliveryRow:
        """Have a delivery told again, with the same id and body."""
        path = f"deliveries/{quote(delivery_id, safe='')}/redeliver/"
        return read(self.post(path, {"reason": reason}).json(), DeliveryRow)

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
        headers = {**JSON, **({KEY: key} if key else {})}
        return self.send("POST", path, body=msgspec.json.encode(body), headers=headers, repeat=repeat or bool(key))

    @staticmethod
    def workload_path(workload_id: str) -> str:
        """Return the address of a workload under the API's root."""
        return f"workloads/{quote(workload_id, safe='')}/"

    @staticmethod
    def read_workload(document: Mapping[str, Any]) -> Workload:
        """Return the document of a workload as its type."""
        return read(document, Workload)


def _hold_path(hold_id: str) -> str:
    return f"holds/{quote(hold_id, safe='')}/"


def _what_if(document: Mapping[str, Any]) -> WhatIfAnswer:
    try:
        return msgspec.convert({"nodes": None, **document}, WhatIfAnswer)
    except msgspec.ValidationError as error:
        raise InputError("AnswerUnreadable", f"the server's answer is not as agreed: {error}") from None


def _filled(**fields: Any) -> dict[str, Any]:
    """Return the fields that say something."""
    return {name: value for name, value in fields.items() if value not in ("", None)}
