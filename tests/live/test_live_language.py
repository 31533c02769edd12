"""Language of the decisions feed: sockets of browser sessions get the language of the reader, tokens get English."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from hetsched.adapters.kubernetes.api import ApiFailure
from hetsched.contracts.documents import to_plain
from hetsched.contracts.message import Message, as_parts, from_column, to_column
from hetsched.inventory.models import Connection
from hetsched.inventory.staleness import watch_document
from hetsched.journal.publish import message
from web.live import rights, socket_reads

SUMMARY = Message("{pod} does not fit now: {detail}", pod="a/b", detail=Message("the node is cordoned"))
CHINESE = "a/b 目前放不下：节点已封锁"


def frame(**entries: Any) -> str:
    return message("decisions", 7, entries)


def test_summaries_of_a_frame_are_translated_from_their_parts() -> None:
    whole = {"summary": SUMMARY, "message": to_plain(SUMMARY, hook=as_parts), "id": 1}
    earlier = {"summary": "the node is cordoned", "id": 2}
    sent = frame(**{"1": whole, "2": earlier, "3": None})
    shown = msgspec.json.decode(socket_reads.in_language("decisions", sent, "zh-hans"))
    assert shown["revision"] == 7
    assert {pk: item and item["summary"] for pk, item in shown["data"].items()} == {
        "1": CHINESE,
        "2": "节点已封锁",
        "3": None,
    }
    assert msgspec.json.decode(sent)["data"]["1"]["summary"] == str(SUMMARY)


def test_frame_is_translated_once_for_all_sockets() -> None:
    sent = frame(**{"9": {"summary": "the node is cordoned", "id": 9}})
    first, second = (socket_reads.in_language("decisions", sent, "zh-hans") for _ in range(2))
    assert first is second


@pytest.mark.parametrize(
    ("language", "reason"),
    [
        ("en", "Unreachable: no connection: [Errno 111] refused"),
        ("zh-hans", "Unreachable：无法连接：[Errno 111] refused"),
    ],
)
def test_stale_reason_is_rendered_from_its_parameters(language: str, reason: str) -> None:
    said = ApiFailure(0, "Unreachable", Message("no connection: {text}", text="[Errno 111] refused")).text
    sent = message("watch:fleet", 3, {"staleSince": "2026-11-26T00:00:00Z", "reason": to_column(said)})
    shown = msgspec.json.decode(socket_reads.in_language("watch:fleet", sent, language))
    assert shown["data"] == {"staleSince": "2026-11-26T00:00:00Z", "reason": reason}


@pytest.mark.parametrize("data", [None, {"reason": None, "factsAt": None}])
def test_fresh_data_has_no_reason(data: dict[str, Any] | None) -> None:
    sent = message("watch:fleet", 4, data)
    assert msgspec.json.decode(socket_reads.in_language("watch:fleet", sent, "zh-hans"))["data"] == data


def test_cluster_topic_keeps_the_parameters_of_the_stale_reason() -> None:
    reason = Message("no connection: {text}", text="[Errno 111] refused")
    connection = Connection(stale_since=datetime(2026, 11, 26, tzinfo=UTC), stale_reason=reason)
    assert from_column(watch_document(connection)["reason"]) == reason
    assert watch_document(connection)["reason"].startswith('{"template":')


@pytest.mark.parametrize(
    ("cookies", "accepted", "protocols", "language"),
    [
        ({}, "zh-CN,zh;q=0.9", (), "zh-hans"),
        ({"django_language": "zh-hans"}, "en", (), "zh-hans"),
        ({"django_language": "en"}, "zh-CN", (), "en"),
        ({}, "fr", (), "en"),
        ({}, "", (), "en"),
        ({}, "zh-CN", ("bearer.hs_x",), "en"),
    ],
    ids=["header", "cookie", "cookie first", "unknown", "none", "token"],
)
def test_language_of_a_socket(
    cookies: dict[str, str], accepted: str, protocols: tuple[str, ...], language: str
) -> None:
    headers = [(b"accept-language", accepted.encode())] if accepted else []
    assert rights.language_of({"cookies": cookies, "headers": headers, "subprotocols": protocols}) == language
