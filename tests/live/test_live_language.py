"""Language of the decisions feed: sockets of browser sessions get the language of the reader, tokens get English."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hetsched.contracts.documents import to_plain
from hetsched.contracts.message import Message, as_parts
from hetsched.journal.publish import message
from web.live import rights, socket_reads

SUMMARY = Message("{pod} does not fit now: {said}", pod="a/b", said=Message("the node is cordoned"))
CHINESE = "a/b 目前放不下：节点已封锁"


def frame(**entries: Any) -> str:
    return message("decisions", 7, entries)


def test_summaries_of_a_frame_are_translated_from_their_parts() -> None:
    whole = {"summary": SUMMARY, "message": to_plain(SUMMARY, hook=as_parts), "id": 1}
    earlier = {"summary": "the node is cordoned", "id": 2}
    sent = frame(**{"1": whole, "2": earlier, "3": None})
    shown = msgspec.json.decode(socket_reads.translated(sent, "zh-hans"))
    assert shown["revision"] == 7
    assert {pk: one and one["summary"] for pk, one in shown["data"].items()} == {
        "1": CHINESE,
        "2": "节点已封锁",
        "3": None,
    }
    assert msgspec.json.decode(sent)["data"]["1"]["summary"] == str(SUMMARY)


def test_a_frame_is_translated_once_for_all_sockets() -> None:
    sent = frame(**{"9": {"summary": "the node is cordoned", "id": 9}})
    assert socket_reads.translated(sent, "zh-hans") is socket_reads.translated(sent, "zh-hans")


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
