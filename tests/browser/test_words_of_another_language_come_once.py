"""In another language than English scripts wait for the words of the floors below: the browser fetches them once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .conftest import Visitor


def test_later_pages_have_the_words_already_whatever_cookies_changed(visit: Callable[..., Visitor]) -> None:
    visitor = visit(locale="zh-CN")
    fetched: dict[str, bool] = {}  # by request: whether the browser had it
    session = visitor.page.context.new_cdp_session(visitor.page)
    session.send("Network.enable")

    def note(event: dict[str, Any]) -> None:
        if "/sentences/" in event["response"]["url"]:
            kept = event["response"].get("fromDiskCache") or event["response"].get("fromPrefetchCache")
            fetched.setdefault(event["requestId"], bool(kept))

    session.on("Network.responseReceived", note)
    session.on("Network.requestServedFromCache", lambda event: fetched.__setitem__(event["requestId"], True))
    for address in ("/", "/nodes/?sort=-cpu", "/nodes/", "/queue/", "/policies/hetsched/"):
        page = visitor.open(address)
        page.wait_for_function("document.documentElement.lang === 'zh-hans'")
    assert list(fetched.values()).count(False) <= 1
    assert len(fetched) > 1
