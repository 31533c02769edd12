"""In another language than English scripts wait for the words of the floors below: the browser fetches them once.

What scripts write of figures and times is in the page's language, too, whatever the browser's own is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

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


def test_times_are_in_the_language_of_the_page_not_in_that_of_the_browser(visit: Callable[..., Visitor]) -> None:
    visitor = visit(locale="en-US", timezone_id="Asia/Shanghai")
    host = visitor.page.context.cookies(visitor.console.url)[0]["domain"]
    choice = {"name": "django_language", "value": "zh-hans", "domain": host, "path": "/"}
    for language, shown in (("en", r"Feasibility at \d\d:\d\d:\d\d\."), ("zh-hans", r"^\d\d:\d\d:\d\d 的可行性")):
        if language != "en":
            visitor.page.context.add_cookies([choice])
        page = visitor.open("/what-if/?cpu=1")
        expect(page.locator("html")).to_have_attribute("lang", language)
        expect(page.locator(".banner")).to_contain_text(re.compile(shown))
        expect(page.locator(".banner")).not_to_contain_text(re.compile("[AP]M"))
