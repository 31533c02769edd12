"""A fake server with a table of responses that replaces the network."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from hetsched.cli.client import Client

_CREATED = "2026-11-22T10:00:00Z"


def a_workload(state: str, *pods: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a workload as a server sends it, by default with one pod in the state of the workload."""
    node = "n1" if state in ("placed", "running", "succeeded") else None
    pods = pods or ({"pod": "default/web", "state": state, "node": node, "message": None},)
    return {
        "id": "w-1", "cluster": "demo", "namespace": "default", "name": "web", "state": state, "policy": "",
        "priority": 0, "podCount": len(pods), "submittedBy": "ci", "callbackUrl": "", "createdAt": _CREATED,
        "decidedAt": None, "finishedAt": None, "states": [{"state": state, "since": _CREATED, "seconds": None}],
        "objects": [], "images": [], "pods": list(pods), "podsNext": None, **more,
    }  # fmt: skip


def a_decision(number: int, verdict: str = "placed", **more: Any) -> dict[str, Any]:
    """Return a decision as a server sends it."""
    node = "n1" if verdict == "placed" else None
    return {
        "id": number, "cluster": "demo", "workload": "w-1", "pod": "default/web", "podId": 70 + number,
        "verdict": verdict, "node": node, "policy": {"name": "hetsched", "version": 1}, "policyRule": "cluster default",
        "score": None, "summary": f"default/web is {verdict}", "reasons": [], "nodes": [], "createdAt": _CREATED,
        **more,
    }  # fmt: skip


Answer = Callable[[httpx.Request], httpx.Response]


class Server:
    """Respond by method and path: the responses in the list of each are used in order, and the last one is repeated."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []
        self._answers: dict[tuple[str, str], list[httpx.Response | Exception]] = {}

    def answers(self, method: str, path: str, *answers: Any, status: int = 200, **headers: str) -> None:
        """Set the responses: documents, bytes, or exceptions that break the connection."""
        made = [
            answer
            if isinstance(answer, BaseException)
            else httpx.Response(status, content=answer, headers=headers)
            if isinstance(answer, bytes)
            else httpx.Response(status, json=answer, headers=headers)
            for answer in answers
        ]
        self._answers[method, path] = made  # type: ignore[assignment]

    def refuses(self, method: str, path: str, status: int, code: str, detail: str, **more: Any) -> None:
        problem = {"title": "", "status": status, "code": code, "detail": detail, **more}
        self.answers(method, path, problem, status=status)

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        waiting = self._answers.get((request.method, request.url.path))
        if waiting is None:
            return httpx.Response(404, json={"code": "NotFound", "detail": f"there is no {request.url.path}"})
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def body(self, number: int = -1) -> Any:
        return json.loads(self.asked[number].content)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Install a `Server` for all commands, and skip pauses."""
    made = Server()
    for module in ("workloads.workloads", "workloads.decisions", "resources", "cluster", "check", "policy"):
        monkeypatch.setattr(
            f"hetsched.cli.{module}.connect",
            lambda address, token: Client(address, token, transport=httpx.MockTransport(made.handle)),
        )
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    return made
