"""A reflector reports existing and deleted objects through failures of its lists and watches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest

from hetsched.adapters.kubernetes.api import ApiFailure, Resource
from hetsched.adapters.kubernetes.reflector import (
    Deleted,
    Event,
    Failed,
    Reflector,
    ServerResponded,
    Synced,
    Upserted,
)
from hetsched.adapters.kubernetes.resources import NODES


def an_object(name: str, version: int) -> bytes:
    return json.dumps({"metadata": {"name": name, "resourceVersion": str(version)}}).encode()


def an_event(kind: str, name: str, version: int) -> bytes:
    return b'{"type":"%s","object":%s}' % (kind.encode(), an_object(name, version))


class Script:
    """An API server that responds to each list and watch with the next step of a script."""

    def __init__(self, *answers: Any) -> None:
        self.answers: Iterator[Any] = iter(answers)
        self.asked: list[str] = []  # `list`, or the version from which a watch continues
        self.paths: list[str] = []

    def list_pages(self, resource: Resource) -> Iterator[tuple[list[bytes], str]]:
        self.asked.append("list")
        self.paths.append(resource.path())
        answer = self._next()
        for page in answer if isinstance(answer, list) else [answer]:
            if isinstance(page, Exception):
                raise page
            yield page

    @contextmanager
    def stream(self, path: str, query: Mapping[str, str], **more: Any) -> Iterator[Iterator[bytes]]:
        self.asked.append(query["resourceVersion"])
        self.paths.append(path)
        yield self._lines(self._next())

    def _next(self) -> Any:
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @staticmethod
    def _lines(lines: list[Any]) -> Iterator[bytes]:
        for line in lines:
            if isinstance(line, Exception):
                raise line
            yield line


class Over(Exception):
    """The script has ended."""


def run_script(*answers: Any) -> tuple[list[Event], list[str], list[float]]:
    """Return the events of a reflector for a script, its calls, and its waits."""
    script, waits = Script(*answers, Over()), []
    events = events_of(script, NODES, waits.append)
    return events, script.asked, waits


def events_of(script: Script, resource: Resource, sleep: Callable[[float], None]) -> list[Event]:
    reflector = Reflector(script, resource, sleep=sleep, chance=lambda: 1.0)  # type: ignore[arg-type]
    events: list[Event] = []
    with suppress(Over):
        for event in reflector.events():
            events.append(event)
    return [event for event in events if isinstance(event, Upserted | Deleted | Synced | Failed)]


LISTED = ([an_object("n1", 5), an_object("n2", 6)], "10")


def keys(events: list[Event]) -> list[str]:
    return [f"{type(event).__name__} {getattr(event, 'key', '')}".strip() for event in events]


def test_ended_watch_resumes_at_its_version() -> None:
    events, asked, _ = run_script(LISTED, [an_event("ADDED", "n3", 11), an_event("BOOKMARK", "", 15)], [])
    assert keys(events) == ["Upserted n1", "Upserted n2", "Synced", "Upserted n3"]
    assert asked == ["list", "10", "15", "15"]


def test_watch_emits_one_event_per_line() -> None:
    lines = [an_event("ADDED", "n3", 11), an_event("DELETED", "n1", 12), an_event("BOOKMARK", "", 15)]
    server: Any = Script(LISTED, lines, Over())
    watched: list[Event] = []
    with suppress(Over):
        for event in Reflector(server, NODES, sleep=lambda _: None).events():
            watched.append(event)
    bodies = an_object("n3", 11), an_object("n1", 12)
    assert watched[4:-1] == [  # after three events of the list and the start of the watch
        Upserted("n3", bodies[0], 11, is_watched=True),
        Deleted("n1", bodies[1], 12, is_watched=True),
        ServerResponded(15),
    ]


@pytest.mark.parametrize("broken", [b'{"type":"ADDED","obj', b"<html>busy</html>", b""])
def test_unreadable_line_is_a_failure_without_skipped_events(broken: bytes) -> None:
    events, asked, waits = run_script(LISTED, [an_event("ADDED", "n3", 11), broken], [an_event("DELETED", "n1", 12)])
    assert keys(events) == ["Upserted n1", "Upserted n2", "Synced", "Upserted n3", "Failed", "Deleted n1"]
    assert asked[:3] == ["list", "10", "11"]
    assert waits == [1.0]


def test_unreadable_list_is_requested_again() -> None:
    events, asked, _ = run_script(msgspec.DecodeError("cut short"), LISTED)
    assert keys(events) == ["Failed", "Upserted n1", "Upserted n2", "Synced"]
    assert asked == ["list", "list", "10"]


GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}


@pytest.mark.parametrize("reported_by", ["status", "event"])
def test_objects_deleted_during_a_history_gap_are_reported_deleted(reported_by: str) -> None:
    expired: Any = ApiFailure(410, "Expired", "too old") if reported_by == "status" else [json.dumps(GONE).encode()]
    events, asked, waits = run_script(LISTED, expired, ([an_object("n2", 6), an_object("n4", 30)], "40"))
    assert keys(events) == ["Upserted n1", "Upserted n2", "Synced", "Upserted n4", "Deleted n1", "Synced"]
    assert asked == ["list", "10", "list", "40"]
    assert waits == []


def test_immediately_expired_watches_back_off() -> None:
    # Immediately after the first, then after 1, 2 and 4 s; a successful list in between is no progress.
    expired = ApiFailure(410, "Expired", "too old")
    watch_fails = run_script(*[answer for _ in range(4) for answer in (LISTED, expired)])
    list_fails = run_script(*[expired] * 4)
    assert (watch_fails[2], list_fails[2]) == ([1.0, 2.0, 4.0], [1.0, 2.0, 4.0])
    assert [event.status for event in list_fails[0] if isinstance(event, Failed)] == [410] * 3


def test_list_that_expires_between_pages_is_restarted() -> None:
    first = ([an_object("n1", 5), an_object("n2", 6)], "10")
    second = ([an_object("n1", 5), an_object("n3", 12)], "12")
    events, asked, waits = run_script([first, ApiFailure(410, "Expired", "too old")], second, [])
    assert keys(events) == ["Upserted n1", "Upserted n2", "Upserted n3", "Deleted n2", "Synced"]
    assert (asked[:3], waits[:1]) == (["list", "list", "12"], [])


def test_page_is_emitted_before_the_next_is_requested() -> None:
    server: Any = Script([([an_object("n1", 5)], "10"), ([an_object("n2", 6)], "10")])
    events = Reflector(server, NODES, sleep=lambda _: None).events()
    pages = server.list_pages
    requested: list[str] = []

    def noted(resource: Resource) -> Iterator[tuple[list[bytes], str]]:
        for number, page in enumerate(pages(resource)):
            requested.append(f"page {number}")
            yield page

    server.list_pages = noted
    assert [(keys([next(events)]), len(requested)) for _ in range(2)] == [(["Upserted n1"], 1), (["Upserted n2"], 2)]
    assert next(events) == Synced(2, version=10)


def test_older_list_after_an_unfinished_one_overwrites_nothing() -> None:
    unfinished = [([an_object("n1", 15)], "20"), ApiFailure(0, "Unreachable", "refused")]
    events, _, _ = run_script(unfinished, ([an_object("n1", 5)], "19"), ([an_object("n1", 15)], "20"))
    assert keys(events) == ["Upserted n1", "Failed", "Failed", "Synced"]


def test_failure_is_reported_before_the_backoff() -> None:
    order: list[str] = []
    server: Any = Script(ApiFailure(500, "InternalError", "no"), Over())
    reflector = Reflector(server, NODES, sleep=lambda _: order.append("slept"), chance=lambda: 1.0)
    with suppress(Over):
        for event in reflector.events():
            order.append(type(event).__name__)
    assert order == ["Failed", "slept"]


def test_list_older_than_the_cache_overwrites_nothing() -> None:
    expired = [json.dumps(GONE).encode()]
    seen = [an_event("ADDED", "n3", 20), *expired]
    stale = ([an_object("n1", 5)], "19")  # another API server that is behind: it has neither n2 nor n3
    events, asked, waits = run_script(LISTED, seen, stale, ([an_object("n1", 5), an_object("n3", 20)], "21"))
    assert keys(events)[3:] == ["Upserted n3", "Failed", "Deleted n2", "Synced"]
    assert asked == ["list", "10", "list", "list", "21"]
    assert waits == [1.0]


def test_duplicate_deletion_event_is_reported_once() -> None:
    deleted = an_event("DELETED", "n1", 12)
    events, _, _ = run_script(
        LISTED, [deleted, deleted, an_event("MODIFIED", "n2", 13), an_event("MODIFIED", "n2", 13)]
    )
    assert keys(events)[3:] == ["Deleted n1", "Upserted n2", "Upserted n2"]


def test_silent_watch_is_restarted() -> None:
    silent = [an_event("ADDED", "n3", 11), ApiFailure(0, "Unreachable", "read timed out")]
    events, asked, _ = run_script(LISTED, silent, [])
    assert keys(events)[3:] == ["Upserted n3", "Failed"]
    assert asked[:3] == ["list", "10", "11"]


def test_busy_server_is_retried_after_retry_after() -> None:
    busy = ApiFailure(429, "TooManyRequests", "later", 7.0)
    _, _, waits = run_script(busy, ApiFailure(503, "ServiceUnavailable", "starting"), LISTED)
    assert waits == [7.0, 2.0]


def test_backoff_grows_until_an_event_arrives() -> None:
    down = ApiFailure(0, "Unreachable", "refused")
    _, _, waits = run_script(down, down, down, LISTED, [an_event("ADDED", "n3", 11), down], down)
    # 1, 2, 4 s before the list; the waits start again after it, and after each event
    assert waits == [1.0, 2.0, 4.0, 1.0, 2.0]


NOT_SERVED = ApiFailure(404, "NotFound", "the server could not find the requested resource")
GROUPS = Resource("example.com", "v1", "groups", "Group", older=("v1beta1", "v1alpha1"))


def versions_of(script: Script) -> list[str]:
    return [path.split("/")[3] for path in script.paths]


def test_kind_is_followed_in_the_newest_version_that_is_served() -> None:
    script = Script(NOT_SERVED, LISTED, [an_event("ADDED", "n3", 11)], Over())
    assert keys(events_of(script, GROUPS, lambda _: None))[-2:] == ["Synced", "Upserted n3"]
    assert versions_of(script) == ["v1", "v1beta1", "v1beta1", "v1beta1"]


def test_kind_without_a_served_version_is_a_failure() -> None:
    waits: list[float] = []
    script = Script(*[NOT_SERVED] * 3, Over())
    (failure,) = events_of(script, GROUPS, waits.append)
    assert isinstance(failure, Failed)
    assert failure.status == 404
    assert versions_of(script) == ["v1", "v1beta1", "v1alpha1", "v1"]
    assert len(waits) == 1


def test_version_that_is_no_longer_served_is_replaced() -> None:
    script = Script(NOT_SERVED, NOT_SERVED, LISTED, NOT_SERVED, ([an_object("n2", 6)], "20"), Over())
    assert keys(events_of(script, GROUPS, lambda _: None)) == [
        "Upserted n1", "Upserted n2", "Synced", "Failed", "Deleted n1", "Synced",
    ]  # fmt: skip
    assert versions_of(script) == ["v1", "v1beta1", "v1alpha1", "v1alpha1", "v1", "v1"]
